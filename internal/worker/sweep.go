package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Sweep ends what is due of one kind of rows, batch by batch.
type Sweep struct {
	Rows string // which, as metrics, errors and the audit log name them: welcomes_expired
	// Batch ends a bounded number of them. more says that others are possibly due.
	Batch func(ctx context.Context) (n int64, more bool, err error)
}

const (
	// SweepRows bounds the rows of one statement, and so the time that it holds their locks.
	SweepRows = 500
	// sweepTime is how long a sweep begins batches. The next round goes on. So no sweep keeps those
	// behind it waiting for long.
	sweepTime = 10 * time.Second
)

// Statement returns a sweep by a statement that ends at most $1 rows; args are $2 and so on. The
// statement passes over rows that others have locked (SKIP LOCKED), so any number of nodes can run
// it.
//
// Each batch is a transaction of maintenance. Its time, now(), is the statement's. Unlike
// clock_timestamp(), now() can bound the scan of an index.
func Statement(db *pgxpool.Pool, rows, sql string, args ...any) Sweep {
	return Sweep{rows, func(ctx context.Context) (n int64, more bool, err error) {
		batch := &pgx.Batch{} // one transaction
		batch.Queue(`SELECT set_config('mlsd.maintenance', 'on', true), set_config('mlsd.reason', $1, true)`, rows)
		batch.Queue(sql, append([]any{SweepRows}, args...)...).Exec(func(tag pgconn.CommandTag) error {
			n = tag.RowsAffected()
			return nil
		})
		err = db.SendBatch(ctx, batch).Close()
		return n, n >= SweepRows, err
	}}
}

// Sweeper returns a function for Every that does sweeps, in their order. A sweep that fails keeps none
// of the others from their turn. swept is called after each sweep with the number of its rows, and
// once before with 0, so that a metric begins.
func Sweeper(swept func(rows string, n int64), sweeps ...Sweep) func(context.Context) error {
	for _, s := range sweeps {
		swept(s.Rows, 0)
	}
	return func(ctx context.Context) error {
		var failed error
		for _, s := range sweeps {
			n, err := s.run(ctx)
			swept(s.Rows, n)
			failed = errors.Join(failed, err)
			if ctx.Err() != nil {
				break
			}
		}
		return failed
	}
}

// run does batches until none is left, or the sweep's time is over.
func (s Sweep) run(ctx context.Context) (total int64, err error) {
	for end := time.Now().Add(sweepTime); ; {
		n, more, err := s.Batch(ctx)
		total += n
		if err != nil {
			return total, fmt.Errorf("sweep %s: %w", s.Rows, err)
		}
		if !more || time.Now().After(end) {
			return total, nil
		}
	}
}
