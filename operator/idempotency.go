package operator

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/idem"
)

// Reservations is the work outside the database that is under way or has failed.
type Reservations struct {
	Processing   int           `json:"processing"`
	Stuck        int           `json:"stuck"`    // of those, the lease is over
	Released     int           `json:"released"` // the last attempt failed, and none has begun since
	Reservations []Reservation `json:"reservations"`
}

// Reservation is one piece of such work.
type Reservation struct {
	Method       string  `json:"method"`
	Scope        string  `json:"scope"`
	Key          string  `json:"key"`
	Caller       string  `json:"caller"`
	State        string  `json:"state"`
	AgeSeconds   float64 `json:"ageSeconds"`
	Fence        int64   `json:"fence"`
	LeaseSeconds float64 `json:"leaseSeconds"` // that are left; negative if the lease is over
	Stuck        bool    `json:"stuck"`
	LastError    string  `json:"lastError"` // of an attempt before this one
}

// ReadReservations lists what is processing, the longest stuck first, and then what was released. It
// reads the whole table.
func ReadReservations(ctx context.Context, tx pgx.Tx, rows int) (r Reservations, err error) {
	err = tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE state = 'processing'), count(*) FILTER (WHERE state = 'processing' AND lease_expires_at <= now()),
			count(*) FILTER (WHERE state = 'released')
		FROM idempotency_keys WHERE state IN ('processing', 'released')`).Scan(&r.Processing, &r.Stuck, &r.Released)
	if err != nil {
		return r, err
	}
	r.Reservations, err = list[Reservation](ctx, tx, `
		SELECT nsid, scope, key, caller_did, state, extract(epoch FROM now() - started_at)::float8, fence,
			extract(epoch FROM lease_expires_at - now())::float8, state = 'processing' AND lease_expires_at <= now(), coalesce(last_error, '')
		FROM idempotency_keys WHERE state IN ('processing', 'released') ORDER BY state, lease_expires_at LIMIT $1`, rows)
	return r, err
}

// RecordCount counts the records of a method in a state.
type RecordCount struct {
	Method        string  `json:"method"`
	State         string  `json:"state"`
	Outcome       string  `json:"outcome"`
	Count         int64   `json:"count"`
	OldestSeconds float64 `json:"oldestSeconds"`
	Expired       int64   `json:"expired"` // not removed yet
	AnswerBytes   int64   `json:"answerBytes"`
}

// Records counts records, those made since then if since is not nil. It reads the whole table.
func Records(ctx context.Context, tx pgx.Tx, since *time.Duration) ([]RecordCount, error) {
	return list[RecordCount](ctx, tx, `
		SELECT nsid, state, outcome, count(*), extract(epoch FROM now() - min(created_at))::float8,
			count(*) FILTER (WHERE expires_at <= now()), coalesce(sum(octet_length(response)), 0)::bigint
		FROM idempotency_keys WHERE $1::interval IS NULL OR created_at > now() - $1 GROUP BY nsid, state, outcome ORDER BY nsid, state, outcome`,
		since)
}

// Lifetime is how long the records of a method last, and how many there are.
type Lifetime struct {
	Method       string   `json:"method"`
	LifeSeconds  float64  `json:"lifeSeconds"`
	LeastSeconds float64  `json:"leastLifeSeconds"` // that MLSD_IDEMPOTENCY_TTL can set
	LeaseSeconds float64  `json:"leaseSeconds"`     // of work outside the database; else 0
	Records      int64    `json:"records"`
	Expired      int64    `json:"expired"` // not removed yet
	NextSeconds  *float64 `json:"nextSeconds"`
}

// DefaultMethods names the operations that state no lifetimes.
const DefaultMethods = "(every other)"

// Lifetimes lists the lifetimes of records and leases as the settings say, and how many records
// there are. It reads the whole table.
func Lifetimes(ctx context.Context, tx pgx.Tx, settings idem.Lifetimes) ([]Lifetime, error) {
	counts, err := list[struct {
		Method           string
		Records, Expired int64
		Next             *float64
	}](ctx, tx, `
		SELECT nsid, count(*), count(*) FILTER (WHERE expires_at <= now()),
			extract(epoch FROM min(expires_at) FILTER (WHERE expires_at > now()) - now())::float8
		FROM idempotency_keys GROUP BY nsid ORDER BY nsid`)
	if err != nil {
		return nil, err
	}
	operations := settings.All()
	all := make([]Lifetime, len(operations))
	for n, o := range operations {
		all[n] = Lifetime{Method: o.NSID, LifeSeconds: o.Life.Seconds(), LeastSeconds: o.Least.Life.Seconds(), LeaseSeconds: o.Lease.Seconds()}
	}
	for _, c := range counts {
		n := slices.IndexFunc(all, func(l Lifetime) bool { return l.Method == c.Method })
		if n < 0 {
			n = len(all)
			all = append(all, Lifetime{Method: c.Method, LifeSeconds: all[0].LifeSeconds, LeaseSeconds: all[0].LeaseSeconds})
		}
		all[n].Records, all[n].Expired, all[n].NextSeconds = c.Records, c.Expired, c.Next
	}
	all[0].Method = DefaultMethods
	return all, nil
}

// Conflict counts the requests of a method that were refused in an hour because of another one.
type Conflict struct {
	Hour   time.Time `json:"hour"`
	Error  string    `json:"error"`
	Method string    `json:"method"`
	Count  int64     `json:"count"`
}

// Conflicts lists refused requests by the hour, the newest first. A node writes its counts every 10
// seconds. The first hour is the one in which the window begins.
func Conflicts(ctx context.Context, tx pgx.Tx, since time.Duration) ([]Conflict, error) {
	return list[Conflict](ctx, tx, `
		SELECT hour, kind, nsid, sum(n)::bigint FROM caller_counts
		WHERE hour > now() - $1::interval - interval '1 hour' AND kind IN ('IdempotencyConflict', 'RequestInProgress', 'EpochMismatch')
		GROUP BY hour, kind, nsid ORDER BY hour DESC, kind, nsid`, since)
}
