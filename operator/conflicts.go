package operator

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

var inspectConflicts = question("conflicts", "refused requests by the hour", countConflicts,
	callersParam("list the callers with the most refused requests"))

// Conflicts lists refused requests by hour, the newest first.
type Conflicts struct {
	Hours     int        `json:"hours" text:"-"`
	Conflicts []Conflict `json:"conflicts"`
}

// Conflict counts the requests of a method in an hour that were refused because of another request.
type Conflict struct {
	Hour   time.Time `json:"hour" text:"hour (UTC)|hour"`
	Error  string    `json:"error"`
	Method string    `json:"method"`
	Count  int64     `json:"count"`
}

// countConflicts lists refused requests by hour. A node writes its counts every 10 seconds. The
// list begins with the hour in which the window begins.
func countConflicts(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
	if c.flag("by-caller") {
		found, err := MostRefused(ctx, tx, c.window(), c.rows())
		return RefusedUses{c.window().Seconds(), found}, err
	}
	found, err := list[Conflict](ctx, tx, `
		SELECT hour, kind, nsid, sum(n)::bigint FROM caller_counts
		WHERE hour > now() - $1::interval - interval '1 hour' AND kind IN ('IdempotencyConflict', 'RequestInProgress',
			'EpochMismatch')
		GROUP BY hour, kind, nsid ORDER BY hour DESC, kind, nsid`, c.window())
	return Conflicts{int(math.Ceil(c.window().Hours())), found}, err
}

// FieldCount counts the conflicts of a method in which a field differs.
type FieldCount struct {
	Method, Field string
	Count         int64
}

// recentRequests is how many of the newest rows of requests the statistics read.
const recentRequests = 50_000

// ConflictFields counts which fields differ when a key is used for another request. It reads the
// newest 50,000 rows of requests.
func ConflictFields(ctx context.Context, tx pgx.Tx, since time.Duration, rows int) ([]FieldCount, error) {
	return list[FieldCount](ctx, tx, `
		SELECT nsid, field, count(*)
		FROM (SELECT * FROM requests ORDER BY id DESC LIMIT $1) r
		CROSS JOIN LATERAL jsonb_array_elements_text(CASE jsonb_typeof(detail -> 'fields') WHEN 'array' THEN detail ->
			'fields' ELSE '[]' END) AS of (field)
		WHERE error = 'IdempotencyConflict' AND at > now() - $2::interval
		GROUP BY nsid, field ORDER BY 3 DESC, 1, 2 LIMIT $3`, recentRequests, since, rows)
}
