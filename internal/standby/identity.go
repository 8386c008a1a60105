package standby

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// Errors of a standby.
var (
	// ErrOther means that the standby belongs to another PostgreSQL, or that it leads to another
	// database.
	ErrOther = errors.New("it is no standby of the primary's database: another PostgreSQL, or another database of it")
	// ErrNotStandby means that the server is not a standby, or is no longer one because it was
	// promoted.
	ErrNotStandby = errors.New("it accepts writes, so it is no standby")

	// ErrNoRights means that reads on the standby may not see everything that reads on the primary
	// see.
	ErrNoRights = errors.New("its account may not read what the primary's account may read: use the same account, or " +
		"GRANT SELECT on the primary")

	errNotProven = errors.New("it has not replayed what this primary wrote when it became the primary")
)

// Check fails unless there is a standby of the primary's database. It does not ask how far the
// standby is behind. Errors: ErrOther, ErrNotStandby, ErrNoRights, errors of the connections.
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

// prove fails unless the standby has replayed WAL that the primary wrote as the primary. When
// PostgreSQL has another timeline, a new generation of the event stream is recorded with this
// timeline, before any other change of the stream. So a standby follows this primary if it has the
// row of the newest generation with the primary's present timeline. A standby that still has the
// WAL of the previous primary does not have this row, however long its WAL is.
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
	case errors.Is(err, pgx.ErrNoRows): // a node records the generation within half a second
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

// checkRights fails if the account of the primary's connection may read a table that the account of
// the standby's connection may not. Both accounts exist on both servers.
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
