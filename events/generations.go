package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// generation is a row of the table generations: a part of the stream in which no place was given
// twice.
type generation struct {
	id    int64
	after int64 // its first event is the next one
	by    server
}

// server is what writes a generation: a PostgreSQL, and its timeline. A promoted standby has another
// timeline, a restored backup as well, and a dump that is read into another PostgreSQL another
// identifier.
type server struct {
	system, timeline *int64 // nil: not known
}

func (s server) known() bool { return s.system != nil && s.timeline != nil }

func (s server) is(o server) bool {
	return s.known() && o.known() && *s.system == *o.system && *s.timeline == *o.timeline
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

// resolve finds the place of a cursor in a stream from first to head: the subscription begins after
// it. outdated says that there are events between them that the client does not have and cannot
// get, or that it has events that are lost. Errors: ErrFutureCursor.
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
		return first - 1, true, nil // where its generation began is not known either
	}
	if i == len(g)-1 && place > head {
		return 0, false, ErrFutureCursor
	}
	for _, later := range g[i+1:] {
		if later.after < place { // the places behind it were given again
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
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
	Begin(context.Context) (pgx.Tx, error)
}

// rower is a connection, a pool or a transaction.
type rower interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}

// stream is the state of the stream at one moment.
type stream struct {
	first, head int64     // the oldest event that is kept, and the newest one
	floor       int64     // of the outbox
	indexed     int64     // convo_events has the messages up to here
	day         time.Time // the partition of the newest one
	of          generations
}

func readStream(ctx context.Context, db database) (s stream, err error) {
	rows, err := db.Query(ctx, `
		SELECT s.head, s.day, s.floor, (SELECT last FROM convo_events_end), coalesce((SELECT min(first_seq) FROM event_days),
			s.head + 1),
			g.id, g.after_seq, g.system_identifier, g.timeline
		FROM stream s, generations g ORDER BY g.id`)
	if err != nil {
		return stream{}, fmt.Errorf("read the ends of the stream: %w", err)
	}
	var g generation
	_, err = pgx.ForEachRow(rows,
		[]any{&s.head, &s.day, &s.floor, &s.indexed, &s.first, &g.id, &g.after, &g.by.system, &g.by.timeline}, func() error {
			s.of = append(s.of, g)
			g.by = server{} // the next row has pointers of its own
			return nil
		})
	if err != nil {
		return stream{}, fmt.Errorf("read the ends of the stream: %w", err)
	}
	return s, nil
}

// SQLSTATEs of a PostgreSQL that does not say who it is.
const (
	insufficientPrivilege = "42501"
	undefinedFunction     = "42883"
	notSupported          = "0A000"
)

// readServer says which PostgreSQL a connection leads to. Every role may call these functions,
// unless an administrator has revoked it. Then the server is not known, and generations begin only
// with Restored and where the stream visibly goes back.
//
// The timeline is that of the WAL which is written now. pg_control_checkpoint would give that of the
// last checkpoint, and a promoted standby makes its first one only minutes later.
func readServer(ctx context.Context, db rower) (s server, err error) {
	err = db.QueryRow(ctx, `
		SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint
		FROM pg_control_system()`).Scan(&s.system, &s.timeline)
	switch pgpool.Code(err) {
	case insufficientPrivilege, undefinedFunction, notSupported:
		return server{}, nil
	}
	if err != nil {
		return server{}, fmt.Errorf("ask for the database's timeline: %w", err)
	}
	return s, nil
}

// ErrUnsettled says that another PostgreSQL is there than the one that writes the newest generation:
// the next one is about to begin.
var ErrUnsettled = errors.New("the stream's next generation has not begun")

// Generation returns the id of the newest generation, read from the server that db leads to. What is
// read on the same connection after it belongs to that generation or to a later one. Error:
// ErrUnsettled.
func Generation(ctx context.Context, db rower) (id int64, err error) {
	var by, here server
	err = db.QueryRow(ctx, `SELECT id, system_identifier, timeline FROM generations ORDER BY id DESC LIMIT 1`).Scan(&id,
		&by.system, &by.timeline)
	if err != nil {
		return 0, fmt.Errorf("read the stream's generation: %w", err)
	}
	if here, err = readServer(ctx, db); err != nil {
		return 0, err
	}
	if by.known() && here.known() && !by.is(here) {
		return 0, ErrUnsettled
	}
	return id, nil
}

// Causes of a generation.
const (
	causeServer   = "another database"
	causeWentBack = "went back"
	causeOperator = "an operator"
)

// beginGeneration begins a generation. It does nothing if known is not the newest one any more:
// another node has begun one. The lock of the stream's end keeps the sequencer from giving places
// meanwhile.
func beginGeneration(ctx context.Context, db database, known int64, by server, cause string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE stream SET floor = 0`); err != nil {
			return fmt.Errorf("lock the end of the stream: %w", err)
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO generations (id, after_seq, system_identifier, timeline, cause, begun_at)
			SELECT greatest(max(id) + 1, extract(epoch FROM clock_timestamp() - '2026-01-01T00:00:00Z')::bigint / 60),
				(SELECT head FROM stream), $2, $3, $4, clock_timestamp()
			FROM generations HAVING max(id) = $1`, known, by.system, by.timeline, cause)
		if err != nil {
			return fmt.Errorf("begin a generation of the stream: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
		if _, err := tx.Exec(ctx, `SELECT pg_notify($1, '')`, eventsChannel); err != nil {
			return fmt.Errorf("announce a generation of the stream: %w", err)
		}
		return nil
	})
}

// checkServer begins a generation if another PostgreSQL than the newest generation's is there. It
// records the PostgreSQL of a generation for which it is not known. It returns all generations.
func checkServer(ctx context.Context, conn *pgx.Conn, known generations) (generations, error) {
	here, err := readServer(ctx, conn)
	if err != nil || !here.known() || known.newest().by.is(here) {
		return known, err
	}
	now, err := readStream(ctx, conn)
	if err != nil {
		return nil, err
	}
	newest := now.of.newest()
	switch {
	case newest.by.is(here):
		return now.of, nil
	case newest.by.known():
		err = beginGeneration(ctx, conn, newest.id, here, causeServer)
	default:
		_, err = conn.Exec(ctx, `
			UPDATE generations SET system_identifier = $2, timeline = $3 WHERE id = $1 AND system_identifier IS NULL`, newest.id,
			here.system, here.timeline)
	}
	if err != nil {
		return nil, fmt.Errorf("record the stream's database: %w", err)
	}
	now, err = readStream(ctx, conn)
	return now.of, err
}

// Restored begins a generation of the stream, and returns its id and the place after which it
// begins. An operator calls it when the database has gone back and PostgreSQL does not show it: a
// dump was restored into the same PostgreSQL, or its disk was replaced by an older copy.
func Restored(ctx context.Context, db *pgx.Conn) (id, after int64, err error) {
	before, err := readStream(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	newest := before.of.newest()
	if err := beginGeneration(ctx, db, newest.id, newest.by, causeOperator); err != nil {
		return 0, 0, err
	}
	now, err := readStream(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	newest = now.of.newest()
	return newest.id, newest.after, nil
}
