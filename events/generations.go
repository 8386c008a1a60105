package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// generation is a row of the table generations. It stands for a part of the stream in which no
// place was given twice.
type generation struct {
	id    int64
	after int64  // the place before its first event
	by    server // the server that writes the generation
}

// position returns the position of an event.
func (g generation) position(seq int64) string {
	return strconv.FormatInt(g.id, 36) + ".0:" + strconv.FormatInt(seq, 10)
}

// numbersOfMinute is how many numbers the events of one minute can have. The id of a generation is
// the minute in which the generation began. So its numbers are larger than all numbers that the
// stream has had before, even in generations that a restore has removed. Numbers reach 53 bits
// after 255 years.
const numbersOfMinute = 1 << 26

// number returns the number of an event.
func (g generation) number(seq int64) int64 { return g.id*numbersOfMinute + seq - g.after }

// place returns the stream_seq of a number.
func (g generation) place(number int64) int64 { return number - g.id*numbersOfMinute + g.after }

// server identifies the database and timeline that write a generation. A field that is 0 is not
// known. A promoted standby or a restored backup has another timeline. A restored dump has another
// table OID, usually another database OID, and in another PostgreSQL another system identifier.
type server struct{ system, timeline, database, table zeronull.Int8 }

// or returns s, with unknown fields taken from o.
func (s server) or(o server) server {
	return server{cmp.Or(s.system, o.system), cmp.Or(s.timeline, o.timeline), cmp.Or(s.database, o.database),
		cmp.Or(s.table, o.table)}
}

// agrees reports whether s and o can be the same server: no field that both know differs.
func (s server) agrees(o server) bool { return s.or(o) == o.or(s) }

// isFailover reports whether o can be s after a failover, or after a restore of its files.
func (s server) isFailover(o server) bool {
	s.timeline, o.timeline = 0, 0
	return s.agrees(o)
}

// generations are all generations, the newest one last.
type generations []generation

func (g generations) newest() generation { return g[len(g)-1] }

// of is the generation in which a place was given.
func (g generations) of(seq int64) generation {
	for _, one := range slices.Backward(g) {
		if one.after < seq {
			return one
		}
	}
	return g[0]
}

// lostAfter is how many places up to head a reader of a generation has that later generations have
// given again, or will.
func (g generations) lostAfter(read generation, head int64) int64 {
	kept := head
	for _, later := range g {
		if later.id > read.id {
			kept = min(kept, later.after)
		}
	}
	return head - kept
}

// resolve finds the place of a cursor in a stream from first to head. The subscription begins after
// this place. outdated says that the client lacks events that it cannot get, or has events that are
// lost. Errors: ErrFutureCursor, with the place after the stream that the cursor names.
func (g generations) resolve(c Cursor, first, head int64) (place int64, outdated bool, err error) {
	if c == oldest {
		return first - 1, false, nil
	}
	i := slices.IndexFunc(g, func(one generation) bool { return one.id == c.Generation })
	place = c.Seq
	if c.Generation == byNumber {
		i = len(g) - 1
		for i > 0 && g[i].id*numbersOfMinute > c.Seq {
			i--
		}
		place = g[i].place(c.Seq)
	}
	if i < 0 {
		return first - 1, true, nil // the beginning of the cursor's generation is unknown, too
	}
	if i == len(g)-1 && place > head {
		return place, false, ErrFutureCursor
	}
	for _, later := range g[i+1:] {
		if later.after < place { // places after after were given again
			place, outdated = later.after, true
		}
	}
	if place < first-1 {
		return first - 1, true, nil
	}
	return place, outdated, nil
}

// database is a connection, or a pool of them.
type database interface {
	pgpool.Queryer
	Begin(context.Context) (pgx.Tx, error)
}

// stream is the state of the stream at one moment.
type stream struct {
	first, head int64     // the oldest event that is kept, and the newest event
	floor       int64     // floor of the outbox
	indexed     int64     // convo_events has the messages up to this place
	day         time.Time // the partition of the newest event
	of          generations
}

func readStream(ctx context.Context, db database) (s stream, err error) {
	rows := pgpool.Rows(ctx, db, `
		SELECT s.head, s.day, s.floor, (SELECT last FROM convo_events_end), coalesce((SELECT min(first_seq) FROM event_days),
			s.head + 1),
			g.id, g.after_seq, g.system_identifier, g.timeline, g.database_oid, g.table_oid
		FROM stream s, generations g ORDER BY g.id`)
	var g generation
	_, err = pgx.ForEachRow(rows, []any{&s.head, &s.day, &s.floor, &s.indexed, &s.first, &g.id, &g.after, &g.by.system,
		&g.by.timeline, &g.by.database, &g.by.table}, func() error { s.of = append(s.of, g); return nil })
	return s, errs.Wrap(err, "read the ends of the stream")
}

// SQLSTATEs of a PostgreSQL that does not identify itself.
const (
	insufficientPrivilege = "42501"
	undefinedFunction     = "42883"
	notSupported          = "0A000"
)

// readServer says which database a connection leads to. If an administrator revoked the functions,
// system and timeline are unknown. Then a failover is noticed only when the stream visibly goes
// back, or when an operator calls Restored.
//
// The timeline is that of the current WAL. pg_control_checkpoint has only the timeline of the last
// checkpoint, and a promoted standby may make a checkpoint minutes later.
func readServer(ctx context.Context, db pgpool.Queryer) (s server, err error) {
	err = db.QueryRow(ctx, `
		SELECT oid::bigint, 'generations'::regclass::oid::bigint FROM pg_database WHERE datname = current_database()`).Scan(
		&s.database, &s.table)
	if err != nil {
		return server{}, fmt.Errorf("ask for the database's OID: %w", err)
	}
	err = db.QueryRow(ctx, `
		SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
		FROM pg_control_system()`).Scan(&s.system, &s.timeline)
	switch pgpool.Code(err) {
	case insufficientPrivilege, undefinedFunction, notSupported:
		return s, nil
	}
	return s, errs.Wrap(err, "ask for the database's timeline")
}

// ErrUnsettled says that another database wrote the newest generation, so the next generation is
// about to begin.
var ErrUnsettled = errors.New("the stream's next generation has not begun")

// Generation returns the id of the newest generation, read from the server that db leads to.
// Whatever the connection reads after that belongs to this generation or to a later one. Error:
// ErrUnsettled.
func Generation(ctx context.Context, db pgpool.Queryer) (id int64, err error) {
	var by, here server
	err = db.QueryRow(ctx, `
		SELECT id, system_identifier, timeline, database_oid, table_oid FROM generations ORDER BY id DESC LIMIT 1`).Scan(&id,
		&by.system, &by.timeline, &by.database, &by.table)
	if err != nil {
		return 0, fmt.Errorf("read the stream's generation: %w", err)
	}
	if here, err = readServer(ctx, db); err != nil {
		return 0, err
	}
	if !by.agrees(here) {
		return 0, ErrUnsettled
	}
	return id, nil
}

// Reasons why a generation began.
const (
	causeServer   = "another database"
	causeWentBack = "went back"
	causeOperator = "an operator"
)

// beginGeneration begins a generation, unless another node has begun one since known was read. The
// lock of the stream's end keeps the sequencer from giving places meanwhile. also, unless nil, is
// called in the same transaction.
func beginGeneration(ctx context.Context, db database, known int64, by server, cause string, also Hook) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE stream SET floor = 0`); err != nil {
			return fmt.Errorf("lock the end of the stream: %w", err)
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO generations (id, after_seq, system_identifier, timeline, database_oid, table_oid, cause, begun_at)
			SELECT greatest(max(id) + 1, extract(epoch FROM clock_timestamp() - '2026-01-01T00:00:00Z')::bigint / 60),
				(SELECT head FROM stream), $2, $3, $4, $5, $6, clock_timestamp()
			FROM generations HAVING max(id) = $1`, known, by.system, by.timeline, by.database, by.table, cause)
		if err != nil {
			return fmt.Errorf("begin a generation of the stream: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
		if _, err := tx.Exec(ctx, `SELECT pg_notify($1, '')`, eventsChannel); err != nil {
			return fmt.Errorf("announce a generation of the stream: %w", err)
		}
		if also == nil {
			return nil
		}
		return also(ctx, tx)
	})
}

// Hook is called in the transaction that records that a dump was restored into the database.
type Hook func(context.Context, pgx.Tx) error

// checkServer begins a generation if the database did not write the newest one. If it did,
// checkServer records new facts about the server. It returns all generations.
func checkServer(ctx context.Context, conn *pgx.Conn, known generations, onDump Hook) (generations, error) {
	here, err := readServer(ctx, conn)
	if by := known.newest().by; err != nil || by.agrees(here) && by.or(here) == by {
		return known, err
	}
	now, err := readStream(ctx, conn)
	if err != nil {
		return nil, err
	}
	newest := now.of.newest()
	switch {
	case newest.by.agrees(here):
		_, err = conn.Exec(ctx, `
			UPDATE generations SET system_identifier = coalesce(system_identifier, $2), timeline = coalesce(timeline, $3),
				database_oid = coalesce(database_oid, $4), table_oid = coalesce(table_oid, $5)
			WHERE id = $1`, newest.id, here.system, here.timeline, here.database, here.table)
	case newest.by.isFailover(here):
		err = beginGeneration(ctx, conn, newest.id, here, causeServer, nil)
	default:
		err = beginGeneration(ctx, conn, newest.id, here, causeServer, onDump)
	}
	if err != nil {
		return nil, fmt.Errorf("record the stream's database: %w", err)
	}
	now, err = readStream(ctx, conn)
	return now.of, err
}

// Restored begins a generation, and returns its id and the place after which the generation begins.
// An operator calls it if the database went back without a trace in PostgreSQL, for example because
// an older copy replaced its disk.
func Restored(ctx context.Context, db *pgx.Conn) (id, after int64, err error) {
	before, err := readStream(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	here, err := readServer(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	if err := beginGeneration(ctx, db, before.of.newest().id, here, causeOperator, nil); err != nil {
		return 0, 0, err
	}
	now, err := readStream(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	newest := now.of.newest()
	return newest.id, newest.after, nil
}
