package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// daysAhead is how many partitions there are for days to come.
const daysAhead = 2

// upkeep makes the partitions of the days ahead and drops those whose events are all older than they have to be. The one of the
// newest event stays, so that a client that has seen that one is never told that its cursor is too old.
//
// What locks out readers waits for them no longer than they can wait for it, and is tried again.
func (s *Sequencer) upkeep(ctx context.Context) error {
	var today, oldest time.Time
	err := s.conn.QueryRow(ctx, `
		WITH clock AS (
			SELECT (clock_timestamp() + $1::interval) AT TIME ZONE 'UTC' AS now
		)
		SELECT greatest(day, now::date), least(day, (now - $2::interval)::date) FROM clock, stream`, s.ahead, s.retention).Scan(&today, &oldest)
	if err != nil {
		return fmt.Errorf("ask for the date: %w", err)
	}
	partitions, err := s.partitions(ctx)
	if err != nil {
		return err
	}
	for n := range daysAhead + 1 {
		day := today.AddDate(0, 0, n)
		if _, there := partitions[day]; !there {
			err = errors.Join(err, s.makeDay(ctx, day))
		}
	}
	for day := range partitions {
		if day.Before(oldest) {
			err = errors.Join(err, s.dropDay(ctx, day))
		}
	}
	return err
}

// makeDay makes the partition of a day. A table that is attached, unlike one that is created as a partition, locks no reader out.
func (s *Sequencer) makeDay(ctx context.Context, day time.Time) error {
	err := s.alter(ctx,
		fmt.Sprintf(`CREATE TABLE %s (LIKE events INCLUDING DEFAULTS INCLUDING CONSTRAINTS)`, partition(day)),
		fmt.Sprintf(`ALTER TABLE events ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')`,
			partition(day), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
	if err != nil {
		return fmt.Errorf("make the partition of %s: %w", day.Format(time.DateOnly), err)
	}
	return nil
}

func (s *Sequencer) dropDay(ctx context.Context, day time.Time) error {
	err := s.alter(ctx,
		fmt.Sprintf(`DELETE FROM event_days WHERE day = '%s'`, day.Format(time.DateOnly)),
		`DROP TABLE `+partition(day))
	if err != nil {
		return fmt.Errorf("drop the partition of %s: %w", day.Format(time.DateOnly), err)
	}
	s.log.InfoContext(ctx, "old events were dropped", "day", day.Format(time.DateOnly))
	return nil
}

// alter runs statements in one transaction that does not wait for others.
func (s *Sequencer) alter(ctx context.Context, statements ...string) error {
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		for _, sql := range append([]string{`SET LOCAL lock_timeout = '100ms'`}, statements...) {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// partition names the partition of a day.
func partition(day time.Time) string { return "events_" + day.Format("20060102") }

// partitions returns the days that there are partitions for.
func (s *Sequencer) partitions(ctx context.Context) (days map[time.Time]struct{}, err error) {
	rows, err := s.conn.Query(ctx, `
		SELECT to_date(right(c.relname, 8), 'YYYYMMDD')
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass`)
	if err != nil {
		return nil, fmt.Errorf("list the partitions: %w", err)
	}
	days = map[time.Time]struct{}{}
	var day time.Time
	if _, err := pgx.ForEachRow(rows, []any{&day}, func() error { days[day] = struct{}{}; return nil }); err != nil {
		return nil, fmt.Errorf("list the partitions: %w", err)
	}
	return days, nil
}
