package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// daysAhead is how many partitions exist for future days.
const daysAhead = 2

// partitions maintains the partitions of the daily tables.
type partitions struct {
	log       *slog.Logger
	retention time.Duration // how long events are kept, at least
	ahead     time.Duration // added to the database's clock in tests
}

// maintain creates the partitions of the coming days, and drops partitions that are older than the
// retention. It keeps the partition of the newest event, so the cursor of a client that has seen
// the newest event is never too old.
//
// Statements that lock readers out wait only briefly for their locks. If they fail, the sequencer
// calls maintain again later.
func (p partitions) maintain(ctx context.Context, conn *pgx.Conn) error {
	var today, oldest time.Time
	err := conn.QueryRow(ctx, `
		WITH clock AS (
			SELECT (clock_timestamp() + $1::interval) AT TIME ZONE 'UTC' AS now
		)
		SELECT greatest(day, now::date), least(day, (now - $2::interval)::date) FROM clock, stream`, p.ahead,
		p.retention).Scan(&today, &oldest)
	if err != nil {
		return fmt.Errorf("ask for the date: %w", err)
	}
	for _, table := range dailyTables {
		days, failed := daysOf(ctx, conn, table)
		if failed != nil {
			return failed
		}
		for n := range daysAhead + 1 {
			day := today.AddDate(0, 0, n)
			if _, there := days[day]; !there {
				err = errors.Join(err, createPartition(ctx, conn, table, day))
			}
		}
		for day := range days {
			if day.Before(oldest) {
				err = errors.Join(err, p.drop(ctx, conn, table, day))
			}
		}
	}
	return err
}

// dailyTables are the tables with a partition for each day. The partition of events is dropped
// first, because an index without its events does no harm.
var dailyTables = []string{"events", "convo_events"}

// createPartition creates the partition of a day. It attaches a new table, because CREATE TABLE …
// PARTITION OF would lock readers out. With this toast_tuple_target a row of 256 messages is not
// split.
func createPartition(ctx context.Context, conn *pgx.Conn, table string, day time.Time) error {
	name, from, to := partition(table, day), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)
	err := alter(ctx, conn,
		fmt.Sprintf(`CREATE TABLE %s (LIKE %s INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE) WITH
				(toast_tuple_target = 8160)`, name, table),
		fmt.Sprintf(`ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')`, table, name, from, to))
	return errs.Wrap(err, "create the partition of %s of %s", table, from)
}

func (p partitions) drop(ctx context.Context, conn *pgx.Conn, table string, day time.Time) error {
	date := day.Format(time.DateOnly)
	err := alter(ctx, conn,
		fmt.Sprintf(`DELETE FROM event_days WHERE day = '%s'`, date),
		fmt.Sprintf(`DROP TABLE %s`, partition(table, day)))
	if err != nil {
		return fmt.Errorf("drop the partition of %s of %s: %w", table, date, err)
	}
	p.log.InfoContext(ctx, "old events were dropped", "table", table, "day", date)
	return nil
}

// alter runs statements in one transaction. Readers wait behind a statement that waits for a lock,
// so such a statement waits for 100 ms at most. DDL takes no parameters, so the statements contain
// names and dates. All of them come from this file.
func alter(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '100ms'`); err != nil {
			return err
		}
		for _, sql := range statements {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// partition returns the name of a table's partition for a day.
func partition(table string, day time.Time) string { return table + "_" + day.Format("20060102") }

// daysOf returns the days for which a table has partitions.
func daysOf(ctx context.Context, conn *pgx.Conn, table string) (days map[time.Time]struct{}, err error) {
	rows := pgpool.Rows(ctx, conn, `
		SELECT to_date(right(c.relname, 8), 'YYYYMMDD')
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::text::regclass`, table)
	days = map[time.Time]struct{}{}
	var day time.Time
	_, err = pgx.ForEachRow(rows, []any{&day}, func() error { days[day] = struct{}{}; return nil })
	return days, errs.Wrap(err, "list the partitions")
}
