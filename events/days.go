package events

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// daysAhead is how many partitions there are for days to come.
const daysAhead = 2

// upkeep makes the partitions of the days ahead and drops those whose events are all older than they have to be. The one of the
// newest event stays, so that a client that has seen that one is never told that its cursor is too old.
//
// Both lock the whole table for a moment. If readers do not let them, it is tried again.
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
		if _, there := partitions[day]; there {
			continue
		}
		_, err := s.conn.Exec(ctx, fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s PARTITION OF events FOR VALUES FROM ('%s') TO ('%s')`,
			partition(day), day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
		if err != nil {
			return fmt.Errorf("make the partition of %s: %w", day.Format(time.DateOnly), err)
		}
	}
	for day := range partitions {
		if !day.Before(oldest) {
			continue
		}
		err := pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `DELETE FROM event_days WHERE day = $1`, day); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `DROP TABLE IF EXISTS `+partition(day))
			return err
		})
		if err != nil {
			return fmt.Errorf("drop the partition of %s: %w", day.Format(time.DateOnly), err)
		}
		s.log.InfoContext(ctx, "old events were dropped", "day", day.Format(time.DateOnly))
	}
	return nil
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
