package operator

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"
)

var inspectReservations = question("reservations", "work outside the database that is under way, stuck or failed",
	readReservations)

// Reservations lists work outside the database that is running or has failed.
type Reservations struct {
	Processing   int           `json:"processing"`
	Stuck        int           `json:"stuck"`    // pieces of running work whose lease is over
	Released     int           `json:"released"` // the last attempt failed, and none has begun since
	Reservations []Reservation `json:"reservations"`
}

// Reservation is one piece of work outside the database.
type Reservation struct {
	Method       string  `json:"method"`
	Scope        string  `json:"scope"`
	Key          string  `json:"key"`
	Caller       string  `json:"caller"`
	State        string  `json:"state" text:"-"`
	AgeSeconds   float64 `json:"ageSeconds" text:"age"`
	Fence        int64   `json:"fence"`
	LeaseSeconds float64 `json:"leaseSeconds" text:"lease"` // seconds left; negative if the lease is over
	Stuck        bool    `json:"stuck" text:"-"`
	LastError    string  `json:"lastError"` // error of an earlier attempt
}

func (r Reservation) cells() []any {
	return []any{r.Method, cmp.Or(r.Scope, "-"), r.Key, r.Caller, longSpan(r.AgeSeconds), r.Fence, r.lease(),
		cmp.Or(r.LastError, "-")}
}

// lease says in words whether somebody has a lease.
func (r Reservation) lease() string {
	switch {
	case r.State == "released":
		return "released"
	case r.Stuck:
		return "over since " + longSpan(-r.LeaseSeconds)
	}
	return "held, " + longSpan(r.LeaseSeconds) + " left"
}

// readReservations lists running work, the longest stuck first, and then released work. It reads
// the whole table.
func readReservations(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
	var r Reservations
	err := tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE state = 'processing'), count(*) FILTER (WHERE state = 'processing' AND lease_expires_at
			<= now()),
			count(*) FILTER (WHERE state = 'released')
		FROM idempotency_keys WHERE state IN ('processing', 'released')`).Scan(&r.Processing, &r.Stuck, &r.Released)
	if err != nil {
		return nil, err
	}
	r.Reservations, err = list[Reservation](ctx, tx, `
		SELECT nsid, scope, key, caller_did, state, extract(epoch FROM now() - started_at)::float8, fence,
			extract(epoch FROM lease_expires_at - now())::float8, state = 'processing' AND lease_expires_at <= now(),
				coalesce(last_error, '')
		FROM idempotency_keys WHERE state IN ('processing', 'released') ORDER BY state, lease_expires_at LIMIT $1`, c.rows())
	return r, err
}

// Processing lists running work, in the order in which the leases end. It uses an index.
func Processing(ctx context.Context, tx pgx.Tx, rows int) ([]Reservation, error) {
	return list[Reservation](ctx, tx, `
		SELECT nsid, scope, key, caller_did, state, extract(epoch FROM now() - started_at)::float8, fence,
			extract(epoch FROM lease_expires_at - now())::float8, lease_expires_at <= now(), coalesce(last_error, '')
		FROM idempotency_keys WHERE state = 'processing' ORDER BY lease_expires_at LIMIT $1`, rows)
}
