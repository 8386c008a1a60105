package operator

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/features/push"
	"mlsd/welcome"
)

var inspectWelcomes = question("welcomes", "Welcomes by state, and those whose devices have not joined", readWelcomes,
	Param{Name: "state", Usage: "list only Welcomes in this state", Optional: true},
	Param{Name: "failed", Usage: "list only Welcomes with a failed join, in any state", Kind: Flag, Optional: true})

// WelcomeStates returns the states of Welcomes, in the order in which a Welcome passes through
// them.
func WelcomeStates() []string {
	return []string{
		string(welcome.Available), string(welcome.InFlight), string(welcome.Consumed), string(welcome.Superseded),
		string(welcome.Expired),
	}
}

// Welcomes counts the Welcomes by state, and says what came of those that devices have fetched.
type Welcomes struct {
	States                 []WelcomeCount `json:"states"`
	OldestInFlightSeconds  *float64       `json:"oldestInFlightSeconds" text:"oldest in flight"` // since it was fetched
	FetchedAndNotConfirmed int64          `json:"fetchedAndNotConfirmed" text:"fetched, not confirmed"`
	// the sum of the attempts of these Welcomes
	DeliveriesNotConfirmed int64 `json:"deliveriesNotConfirmed" text:"their attempts"`
	// the sweeper's next work
	GraceOverAndNotReleased int64 `json:"graceOverAndNotReleased" text:"grace over, not released"`
	// failed joins of all Welcomes, once per lease
	FailedJoins int64 `json:"failedJoins"`
	// the last errors that devices have reported
	LastErrors []ErrorCount `json:"lastErrors"`
	// most failures first, then most attempts
	Welcomes []Welcome `json:"welcomes"`
}

// WelcomeCount counts the Welcomes in a state.
type WelcomeCount struct {
	State         string  `json:"state"`
	Count         int64   `json:"count" text:"Welcomes"`
	OldestSeconds float64 `json:"oldestSeconds" text:"oldest"` // since the commit
	Attempts      int64   `json:"attempts"`
	// Ages in seconds: of available Welcomes since their commit, of Welcomes in flight since they
	// were fetched, and of consumed Welcomes from the commit to the join.
	P50      float64 `json:"medianSeconds" text:"median age"`
	P95      float64 `json:"p95Seconds" text:"95 %"`
	Highest  float64 `json:"highestSeconds" text:"highest"`
	Retried  int64   `json:"fetchedAgain"` // fetched more than once
	Failures int64   `json:"failedJoins"`
}

// ErrorCount counts rows with the same last error.
type ErrorCount struct {
	Error string `json:"error" text:"last error"`
	Count int64  `json:"count"`
}

// Welcome is one Welcome, without its content.
type Welcome struct {
	ID             string     `json:"id" text:"Welcome"`
	Convo          string     `json:"convo"`
	Recipient      string     `json:"recipient" text:"-"`
	Device         string     `json:"device" text:"-"`
	Epoch          int64      `json:"epoch" text:"-"`
	State          string     `json:"state"`
	Attempts       int64      `json:"attempts"` // number of leases
	Failures       int64      `json:"failures"`
	CreatedAt      time.Time  `json:"createdAt" text:"-"`
	FetchedAt      *time.Time `json:"fetchedAt,omitempty" text:"-"`
	ConfirmedAt    *time.Time `json:"confirmedAt,omitempty" text:"-"`
	Silent         bool       `json:"silent" text:"-"`               // consumed because its grace was over
	AgeSeconds     float64    `json:"ageSeconds" text:"age"`         // since the commit
	FetchedSeconds *float64   `json:"fetchedSeconds" text:"fetched"` // since the last lease was opened
	FailedSeconds  *float64   `json:"failedSeconds" text:"failed"`   // since the last failed join
	LastError      string     `json:"lastError"`
}

// readWelcomes counts Welcomes and lists some of them: those in a state, or, if failed is set,
// those with a failed join in any state. If neither is set, it lists the Welcomes that were fetched
// and can still be delivered. It reads the whole table.
func readWelcomes(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
	var r Welcomes
	state := c.Params["state"]
	if state != "" && !slices.Contains(WelcomeStates(), state) {
		return nil, BadRequest("--state must be one of " + strings.Join(WelcomeStates(), ", "))
	}
	var err error
	if r.States, r.LastErrors, err = CountWelcomes(ctx, tx, WholeTable, c.rows()); err != nil {
		return nil, err
	}
	err = tx.QueryRow(ctx, `
		SELECT extract(epoch FROM now() - min(fetched_at) FILTER (WHERE state = 'in_flight'))::float8,
			count(*) FILTER (WHERE attempts > 0 AND state <> 'consumed'), coalesce(sum(attempts) FILTER (WHERE state <>
				'consumed'), 0),
			count(*) FILTER (WHERE state = 'in_flight' AND grace_expires_at <= now()), coalesce(sum(failures), 0)
		FROM welcomes`).
		Scan(&r.OldestInFlightSeconds, &r.FetchedAndNotConfirmed, &r.DeliveriesNotConfirmed, &r.GraceOverAndNotReleased,
			&r.FailedJoins)
	if err != nil {
		return nil, err
	}
	r.Welcomes, err = list[Welcome](ctx, tx, `
		SELECT id::text, convo_id::text, recipient_did, device_id, epoch, state, attempts, failures, created_at, fetched_at,
			confirmed_at, silent,
			extract(epoch FROM now() - created_at)::float8, extract(epoch FROM now() - fetched_at)::float8,
			extract(epoch FROM now() - last_failed_at)::float8, coalesce(left(last_failure, 120), '')
		FROM welcomes
		WHERE CASE WHEN $1 <> '' THEN state = $1 WHEN $2 THEN true ELSE attempts > 0 AND state IN ('available', 'in_flight')
			END
			AND (failures > 0 OR NOT $2)
		ORDER BY failures DESC, attempts DESC, created_at, id LIMIT $3`, state, c.flag("failed"), c.rows())
	return r, err
}

// CountWelcomes counts Welcomes by state, and the last errors that devices have reported of failed
// joins. It reads percent of the table, and estimates the numbers from that.
func CountWelcomes(ctx context.Context, tx pgx.Tx, percent float64, rows int) (states []WelcomeCount, said []ErrorCount,
	err error) {
	states, err = list[WelcomeCount](ctx, tx, `
		SELECT state, count(*), extract(epoch FROM now() - min(created_at))::float8, sum(attempts),
			percentile_disc(0.5) WITHIN GROUP (ORDER BY age), percentile_disc(0.95) WITHIN GROUP (ORDER BY age), max(age),
			count(*) FILTER (WHERE attempts > 1), sum(failures)::bigint
		FROM (
			SELECT state, attempts, failures, created_at, coalesce(extract(epoch FROM
				CASE state WHEN 'in_flight' THEN now() - fetched_at WHEN 'consumed' THEN confirmed_at - created_at ELSE now() -
					created_at END), 0)::float8 AS age
			FROM welcomes TABLESAMPLE SYSTEM ($1)
		) aged
		GROUP BY state ORDER BY state`, percent)
	if err != nil {
		return nil, nil, err
	}
	for i := range states {
		s := &states[i]
		s.Count, s.Attempts = scaled(s.Count, percent), scaled(s.Attempts, percent)
		s.Retried, s.Failures = scaled(s.Retried, percent), scaled(s.Failures, percent)
	}
	said, err = list[ErrorCount](ctx, tx, `
		SELECT left(last_failure, 120), count(*) FROM welcomes TABLESAMPLE SYSTEM ($1) WHERE last_failure IS NOT NULL
		GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $2`, percent, rows)
	for i := range said {
		said[i].Count = scaled(said[i].Count, percent)
	}
	return states, said, err
}

// WelcomesIn lists the Welcomes in a state before a place, the newest first. If failed is set, it
// lists the Welcomes with a failed join in any state.
func WelcomesIn(ctx context.Context, tx pgx.Tx, state string, failed bool, before push.Place,
	rows int) ([]Welcome, error) {
	return list[Welcome](ctx, tx, `
		SELECT id::text, convo_id::text, recipient_did, device_id, epoch, state, attempts, failures, created_at, fetched_at,
			confirmed_at, silent,
			extract(epoch FROM now() - created_at)::float8, extract(epoch FROM now() - fetched_at)::float8,
			extract(epoch FROM now() - last_failed_at)::float8, coalesce(left(last_failure, 120), '')
		FROM welcomes
		WHERE CASE WHEN $2 THEN failures > 0 ELSE state = $1 END AND (created_at, id) < ($3, $4)
		ORDER BY welcomes.created_at DESC, welcomes.id DESC LIMIT $5`, state, failed, before.At, before.ID, rows)
}

// WelcomesOf lists an account's Welcomes into convos of which it is a member, the newest first.
func WelcomesOf(ctx context.Context, tx pgx.Tx, did string, rows int) ([]Welcome, error) {
	return list[Welcome](ctx, tx, `
		SELECT w.id::text, w.convo_id::text, w.recipient_did, w.device_id, w.epoch, w.state, w.attempts, w.failures,
			w.created_at, w.fetched_at,
			w.confirmed_at, w.silent, extract(epoch FROM now() - w.created_at)::float8, extract(epoch FROM now() -
				w.fetched_at)::float8,
			extract(epoch FROM now() - w.last_failed_at)::float8, coalesce(left(w.last_failure, 120), '')
		FROM members m JOIN welcomes w ON w.convo_id = m.convo_id AND w.recipient_did = m.did
		WHERE m.did = $1 AND m.left_at IS NULL ORDER BY w.created_at DESC, w.id DESC LIMIT $2`, did, rows)
}
