package operator

import (
	"context"

	"github.com/jackc/pgx/v5"
)

var inspectRecords = question("records", "idempotency records by method and state", countRecords,
	callersParam("list the callers with the most requests, and what became of their keys"))

// RecordCounts counts idempotency records.
type RecordCounts struct {
	Records []RecordCount `json:"records"`
}

// RecordCount counts the records of a method in a state.
type RecordCount struct {
	Method        string  `json:"method"`
	State         string  `json:"state"`
	Outcome       string  `json:"outcome"`
	Count         int64   `json:"count" text:"records"`
	OldestSeconds float64 `json:"oldestSeconds" text:"oldest"`
	Expired       int64   `json:"expired"` // not yet deleted
	AnswerBytes   int64   `json:"answerBytes" text:"bytes"`
}

// countRecords counts records. If the call names a window of time, it counts the records made in
// that window. It reads the whole table.
func countRecords(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
	if c.flag("by-caller") {
		return callers(ctx, tx, c)
	}
	found, err := list[RecordCount](ctx, tx, `
		SELECT nsid, state, outcome, count(*), extract(epoch FROM now() - min(created_at))::float8,
			count(*) FILTER (WHERE expires_at <= now()), coalesce(sum(octet_length(response)), 0)::bigint
		FROM idempotency_keys WHERE $1::interval = '0' OR created_at > now() - $1
		GROUP BY nsid, state, outcome ORDER BY nsid, state, outcome`, c.since())
	return RecordCounts{found}, err
}
