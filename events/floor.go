package events

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// floorEvery is how often the leader tries to raise the floor.
const floorEvery = 500 * time.Millisecond

// floor is an id of the outbox. All rows up to the floor have been moved, and no transaction can
// insert such a row any more. The sequencer reads only the rows after the floor. While a snapshot
// is open anywhere, for example in a pg_dump, PostgreSQL keeps the rows that were moved. Without a
// floor, each step would read all these rows again.
//
// A row gets its id before it is committed, so a low id can be committed late. A transaction takes
// a lock on the table, in the mode ROW EXCLUSIVE, before it takes an id, and holds the lock until
// its end. So these three steps find a floor:
//
// 1. read the newest id that a row has got: the candidate;
//  2. after that, find the transactions that hold such a lock;
//  3. once all of them have ended, move rows until there are none left.
//
// Then no row up to the candidate is missing. Transaction ids would not show this, because a row
// can have its id before its transaction has one.
type floor struct {
	at  int64     // the floor
	due time.Time // when the next of the three steps can run

	moved     bool     // rows were moved since the last candidate was read
	candidate int64    // 0 means none
	writers   []string // virtual transaction ids of transactions that may hold a lower id
	ended     bool     // all writers have ended
}

// seek does the next step to raise the floor, at most once in floorEvery.
func (f *floor) seek(ctx context.Context, conn *pgx.Conn) error {
	if time.Now().Before(f.due) || f.ended || f.candidate == 0 && !f.moved {
		return nil
	}
	f.due = time.Now().Add(floorEvery)
	if f.candidate > 0 {
		err := conn.QueryRow(ctx, `
			SELECT count(*) = 0 FROM pg_locks WHERE relation = 'outbox'::regclass AND virtualtransaction = ANY($1)`,
			f.writers).Scan(&f.ended)
		return errs.Wrap(err, "look for the writers of the outbox")
	}
	both := &pgx.Batch{}
	both.Queue(`SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox_id_seq`).
		QueryRow(func(row pgx.Row) error { return row.Scan(&f.candidate) })
	both.Queue(`
		SELECT coalesce(array_agg(virtualtransaction), '{}') FROM pg_locks
		WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'outbox'::regclass
			AND mode = 'RowExclusiveLock' AND granted AND pid IS DISTINCT FROM pg_backend_pid()`).
		QueryRow(func(row pgx.Row) error { return row.Scan(&f.writers) })
	if err := conn.SendBatch(ctx, both).Close(); err != nil {
		f.candidate = 0
		return fmt.Errorf("look for the writers of the outbox: %w", err)
	}
	f.moved, f.ended = false, len(f.writers) == 0
	return nil
}

// raise makes the candidate the floor, once all rows up to the candidate have been moved. The
// writers must have ended.
func (f *floor) raise(ctx context.Context, conn *pgx.Conn) error {
	if f.candidate > f.at { // otherwise nothing was written since
		tag, err := conn.Exec(ctx, `
			UPDATE stream SET floor = $1 WHERE NOT EXISTS (SELECT FROM outbox WHERE id > floor AND id <= $1)`, f.candidate)
		if err != nil {
			return fmt.Errorf("raise the floor of the outbox: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
	}
	*f = floor{at: f.candidate, due: f.due, moved: f.moved}
	return nil
}
