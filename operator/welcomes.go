package operator

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Welcomes are the Welcomes by state, and what became of those that devices have fetched.
type Welcomes struct {
	States                  []WelcomeCount `json:"states"`
	OldestInFlightSeconds   *float64       `json:"oldestInFlightSeconds"` // since it was fetched
	FetchedAndNotConfirmed  int64          `json:"fetchedAndNotConfirmed"`
	DeliveriesNotConfirmed  int64          `json:"deliveriesNotConfirmed"`  // the sum of their attempts
	GraceOverAndNotReleased int64          `json:"graceOverAndNotReleased"` // the sweeper's next work
	FailedJoins             int64          `json:"failedJoins"`             // of all Welcomes, once per lease
	LastErrors              []ErrorCount   `json:"lastErrors"`              // what devices said last of failed joins
	Welcomes                []Welcome      `json:"welcomes"`                // most failures first, then most attempts
}

// WelcomeCount counts the Welcomes in a state.
type WelcomeCount struct {
	State         string  `json:"state"`
	Count         int64   `json:"count"`
	OldestSeconds float64 `json:"oldestSeconds"`
	Attempts      int64   `json:"attempts"`
}

// ErrorCount counts rows with the same last error.
type ErrorCount struct {
	Error string `json:"error"`
	Count int64  `json:"count"`
}

// Welcome is one Welcome, without its content.
type Welcome struct {
	ID             string   `json:"id"`
	Convo          string   `json:"convo"`
	State          string   `json:"state"`
	Attempts       int64    `json:"attempts"` // leases
	Failures       int64    `json:"failures"`
	AgeSeconds     float64  `json:"ageSeconds"`     // since its commit
	FetchedSeconds *float64 `json:"fetchedSeconds"` // since the last lease was opened
	FailedSeconds  *float64 `json:"failedSeconds"`  // since the last failed join
	LastError      string   `json:"lastError"`
}

// ReadWelcomes counts Welcomes, and lists those in a state or, if failed, those with a failed join in
// any state. Without either it lists those that were fetched and can still be delivered. It reads
// the whole table.
func ReadWelcomes(ctx context.Context, tx pgx.Tx, state string, failed bool, rows int) (r Welcomes, err error) {
	r.States, err = list[WelcomeCount](ctx, tx, `
		SELECT state, count(*), extract(epoch FROM now() - min(created_at))::float8, sum(attempts)
		FROM welcomes GROUP BY state ORDER BY state`)
	if err != nil {
		return r, err
	}
	err = tx.QueryRow(ctx, `
		SELECT extract(epoch FROM now() - min(fetched_at) FILTER (WHERE state = 'in_flight'))::float8,
			count(*) FILTER (WHERE attempts > 0 AND state <> 'consumed'), coalesce(sum(attempts) FILTER (WHERE state <> 'consumed'), 0),
			count(*) FILTER (WHERE state = 'in_flight' AND grace_expires_at <= now()), coalesce(sum(failures), 0)
		FROM welcomes`).
		Scan(&r.OldestInFlightSeconds, &r.FetchedAndNotConfirmed, &r.DeliveriesNotConfirmed, &r.GraceOverAndNotReleased, &r.FailedJoins)
	if err != nil {
		return r, err
	}
	r.LastErrors, err = list[ErrorCount](ctx, tx, `
		SELECT left(last_failure, 80), count(*) FROM welcomes WHERE last_failure IS NOT NULL
		GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $1`, rows)
	if err != nil {
		return r, err
	}
	r.Welcomes, err = list[Welcome](ctx, tx, `
		SELECT id::text, convo_id::text, state, attempts, failures, extract(epoch FROM now() - created_at)::float8,
			extract(epoch FROM now() - fetched_at)::float8, extract(epoch FROM now() - last_failed_at)::float8, coalesce(left(last_failure, 80), '')
		FROM welcomes
		WHERE CASE WHEN $1 <> '' THEN state = $1 WHEN $2 THEN true ELSE attempts > 0 AND state IN ('available', 'in_flight') END
			AND (failures > 0 OR NOT $2)
		ORDER BY failures DESC, attempts DESC, created_at, id LIMIT $3`, state, failed, rows)
	return r, err
}
