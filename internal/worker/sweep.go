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

// Sweep ends the rows of one kind that are due, batch by batch.
type Sweep struct {
	Rows string // the name of the rows in metrics, errors and the audit log, for example welcomes_expired
	// Batch ends a bounded number of rows. more says that other rows may be due.
	Batch func(ctx context.Context) (n int64, more bool, err error)
}

const (
	// SweepRows bounds the rows of one statement, and so how long the statement holds their locks.
	SweepRows = 500
	// sweepTime is how long a sweep begins new batches. The next round does the rest. So no sweep
	// makes the sweeps after it wait for long.
	sweepTime = 10 * time.Second
)

// Statement returns a sweep by a statement that ends at most $1 rows; args are $2 and so on. The
// statement skips rows that others have locked (SKIP LOCKED), so any number of nodes can run it.
//
// Each batch is a transaction of maintenance. The transaction begins with the statement, so now()
// is the statement's time. Unlike clock_timestamp(), now() can bound the scan of an index.
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

// Sweeper returns a function for Every that runs sweeps in order. If a sweep fails, the others
// still run. swept is called after each sweep with the number of its rows. Before the first sweep,
// swept is called once with 0, so that the metric exists.
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

// run runs batches until no row is due, or the sweep's time is over.
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
