package standby

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// What is wrong with a standby.
var (
	// ErrOther means that the standby is of another PostgreSQL, or has another database of it.
	ErrOther = errors.New("it is no standby of the primary's database: another PostgreSQL, or another database of it")
	// ErrNotStandby means that the server is not a standby, or not any more: it has been promoted.
	ErrNotStandby = errors.New("it accepts writes, so it is no standby")

	// ErrNoRights means that reads of the standby may not see what those of the primary see.
	ErrNoRights = errors.New("its account may not read what the primary's account may read: use the same account, or " +
		"GRANT SELECT on the primary")

	errNotProven = errors.New("it has not replayed what this primary wrote when it became the primary")
)

// Check fails unless there is a standby of the primary's database. It does not ask how far that is.
// Errors: ErrOther, ErrNotStandby, ErrNoRights, those of the connections.
func Check(ctx context.Context, primary, standby *pgx.ConnConfig) error {
	s := &session{}
	err := s.connect(ctx, primary, standby)
	if err == nil {
		err = checkRights(ctx, s.primary, s.standby)
	}
	if err == nil {
		err = pgpool.CheckSessions(ctx, s.standby)
	}
	return errors.Join(err, s.close(ctx))
}

// compare fails unless standby is a standby of the primary's PostgreSQL and leads to the same
// database. It returns when the standby's server began.
func compare(ctx context.Context, primary, standby *pgx.Conn) (began time.Time, err error) {
	const who = `
		SELECT s.system_identifier, d.oid::bigint, pg_is_in_recovery(), pg_postmaster_start_time()
		FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()`
	type server struct {
		system, database int64
		standby          bool
		began            time.Time
	}
	var here, there server
	if err := primary.QueryRow(ctx, who).Scan(&here.system, &here.database, &here.standby, &here.began); err != nil {
		return began, fmt.Errorf("ask which database the primary has: %w", err)
	}
	if err := standby.QueryRow(ctx, who).Scan(&there.system, &there.database, &there.standby, &there.began); err != nil {
		return began, fmt.Errorf("ask which database the standby has: %w", err)
	}
	switch {
	case here.system != there.system, here.database != there.database:
		return began, ErrOther
	case !there.standby:
		return began, ErrNotStandby
	}
	return there.began, nil
}

// prove fails unless the standby has replayed what the primary has written since it is the primary.
// When PostgreSQL has another timeline, a new generation of the event stream is recorded with it,
// before anything else of the stream. So a standby that has the row of the newest generation, with
// the timeline that the primary has now, follows this primary. One that still has the WAL of the
// primary before has not, however far that WAL goes.
func prove(ctx context.Context, primary, standby *pgx.Conn) error {
	type generation struct {
		id    int64
		begun time.Time
	}
	var here, there generation
	err := primary.QueryRow(ctx, `
		SELECT g.id, g.begun_at
		FROM (SELECT * FROM generations ORDER BY id DESC LIMIT 1) g, pg_control_system() s
		WHERE g.system_identifier = s.system_identifier
			AND g.timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint`).Scan(&here.id,
		&here.begun)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // a node records it within half a second
		return errNotProven
	case err != nil:
		return fmt.Errorf("read the primary's generation: %w", err)
	}
	err = standby.QueryRow(ctx, `SELECT id, begun_at FROM generations ORDER BY id DESC LIMIT 1`).Scan(&there.id,
		&there.begun)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errNotProven
	case err != nil:
		return fmt.Errorf("read the standby's generation: %w", err)
	case there.id != here.id || !there.begun.Equal(here.begun):
		return errNotProven
	}
	return nil
}

// checkRights fails if there is a table that the account of the primary's connection may read, and
// the account of the standby's may not. Both accounts are on both servers.
func checkRights(ctx context.Context, primary, standby *pgx.Conn) error {
	var account string
	if err := primary.QueryRow(ctx, `SELECT current_user`).Scan(&account); err != nil {
		return fmt.Errorf("ask for the primary's account: %w", err)
	}
	var table *string
	err := standby.QueryRow(ctx, `
		SELECT min(relname) FROM pg_class
		WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v')
			AND has_table_privilege($1, oid, 'SELECT') AND NOT has_table_privilege(oid, 'SELECT')`, account).Scan(&table)
	switch {
	case err != nil:
		return fmt.Errorf("ask for the rights of the standby's account: %w", err)
	case table != nil:
		return fmt.Errorf("%w: the table %s", ErrNoRights, *table)
	}
	return nil
}
