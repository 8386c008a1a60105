package keypackages

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Reaped counts what one round of the Reaper did.
type Reaped struct {
	Expired  int64 // KeyPackages that no one claimed in time
	Orphaned int64 // claims that lapsed
	Deleted  int64 // KeyPackages that ended longer than KeepEnded ago
}

// Reaper brings the stored state of KeyPackages up to date with the clock, signals lapsed claims to
// the owners, and deletes what is no longer needed. Any number of nodes can run one: they pass over
// each other's rows.
type Reaper struct {
	db    *pgxpool.Pool
	count func(Reaped)
}

// NewReaper returns a reaper. It calls count after every round.
func NewReaper(db *pgxpool.Pool, count func(Reaped)) *Reaper {
	return &Reaper{db: db, count: count}
}

const (
	reapBatch = 500 // rows of one transaction

	// KeepEnded is how long a KeyPackage is kept after it was consumed, expired or orphaned. Until
	// then a Welcome that names it is refused with its state, and a Welcome by the caller whose
	// claim lapsed is still accepted.
	KeepEnded = 30 * 24 * time.Hour
	// keepSignal is how long a signal is kept.
	keepSignal = 30 * 24 * time.Hour
)

// endClaimsSQL ends lapsed claims.
//
//go:embed end_claims.sql
var endClaimsSQL string

// RunOnce does all the work that is due, in bounded batches. Each statement is a transaction of its
// own, so now() is its time. An index can be searched by now(), not by clock_timestamp().
func (r *Reaper) RunOnce(ctx context.Context) (done Reaped, err error) {
	defer func() { r.count(done) }()
	var signals int64
	for _, step := range []struct {
		name  string
		count *int64
		sql   string
		args  []any
	}{
		{"expire KeyPackages", &done.Expired, `
			UPDATE key_packages SET state = 'expired'
			WHERE (did, ref) IN (
				SELECT did, ref FROM key_packages
				WHERE state = 'available' AND claimed_by IS NULL AND not_after <= now()
				ORDER BY not_after LIMIT $1 FOR UPDATE SKIP LOCKED)`, nil},
		{"end lapsed claims", &done.Orphaned, endClaimsSQL, nil},
		{"delete ended KeyPackages", &done.Deleted, `
			DELETE FROM key_packages
			WHERE (did, ref) IN (
				SELECT did, ref FROM key_packages
				WHERE state IN ('consumed', 'expired', 'orphaned')
					AND coalesce(consumed_at, claim_expires_at, not_after) <= now() - $2::interval
				ORDER BY coalesce(consumed_at, claim_expires_at, not_after) LIMIT $1 FOR UPDATE SKIP LOCKED)`,
			[]any{KeepEnded}},
		{"delete old signals", &signals, `
			DELETE FROM key_package_signals
			WHERE (did, device_id, cipher_suite, kind) IN (
				SELECT did, device_id, cipher_suite, kind FROM key_package_signals
				WHERE raised_at <= now() - $2::interval
				ORDER BY raised_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, []any{keepSignal}},
	} {
		for {
			tag, err := r.db.Exec(ctx, step.sql, append([]any{reapBatch}, step.args...)...)
			if err != nil {
				return done, fmt.Errorf("%s: %w", step.name, err)
			}
			*step.count += tag.RowsAffected()
			if tag.RowsAffected() < reapBatch {
				break
			}
		}
	}
	return done, nil
}
