package invariants

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// pageSizes bound a page, which is what a check reads in one transaction. A page takes some seconds
// at most, so a statement that waits for a lock of a table waits no longer.
type pageSizes struct {
	entries int64 // of logs; longer logs are divided
	convos  int
	people  int
	events  int // rows of the stream, each of up to 256 messages
}

var usualSizes = pageSizes{entries: 50_000, convos: 2_000, people: 500, events: 5_000}

// MaxSample is how many convos, and how many people in them, a sample has at most.
const MaxSample = 10_000

// Cursor is where a check continues. The zero Cursor is the beginning of a check of everything. A
// check goes through convos, people and events in the order of their keys, so it verifies once
// whatever is stored during the whole check.
type Cursor struct {
	Since time.Time `json:"since,omitzero"` // verify only new entries and events, and convos that have changed
	Stage int       `json:"stage"`          // an index of stages

	Convo  uuid.UUID `json:"convo,omitzero"`  // the last convo
	Seq    int64     `json:"seq,omitempty"`   // the last entry of its log, if the log goes on
	Person string    `json:"did,omitempty"`   // the last person
	Event  int64     `json:"event,omitempty"` // the place of the last event
	Day    string    `json:"day,omitempty"`   // the last day of the stream's index

	About   int64 `json:"about,omitempty"`  // about how many convos there are, in a check of everything
	Convos  int64 `json:"convos,omitempty"` // how many were verified so far
	Entries int64 `json:"entries,omitempty"`
	People  int64 `json:"people,omitempty"`
	Events  int64 `json:"events,omitempty"` // rows, which can be several events
}

// From returns the beginning of a check of what has changed since a time. A convo has changed if it
// was created, got an entry, was closed or lost a member.
func From(since time.Time) Cursor { return Cursor{Since: since} }

// errCursor is the error of ParseCursor.
var errCursor = errors.New("cursor must be the cursor of an answer")

// ParseCursor parses the text of a cursor.
func ParseCursor(text string) (c Cursor, err error) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil || c.Stage < 0 || c.Seq < 0 || c.Event < 0 {
		return Cursor{}, errCursor
	}
	return c, nil
}

// String returns the text of a cursor.
func (c Cursor) String() string {
	data, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("a cursor is always JSON: %v", err))
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// stages are the parts of a check. A stage verifies one page, and returns the cursor behind it.
var stages = []struct {
	name string
	page func(*verification, context.Context, pgx.Tx, Cursor) (Cursor, error)
}{
	{"small tables", (*verification).factsPage},
	{"convos", (*verification).convosPage},
	{"people", (*verification).peoplePage},
	{"events", (*verification).streamPage},
	{"the index of events", (*verification).dayPage},
}

// Done reports whether the check has ended.
func (c Cursor) Done() bool { return c.Stage >= len(stages) }

// page verifies the next page, and returns the cursor behind it.
func (v *verification) page(ctx context.Context, db *pgxpool.Pool, at Cursor) (next Cursor, err error) {
	stage := stages[at.Stage]
	err = read(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
		next, err = stage.page(v, ctx, tx, at)
		return err
	})
	return next, errs.Wrap(err, "check %s", stage.name)
}

func (v *verification) factsPage(ctx context.Context, tx pgx.Tx, at Cursor) (Cursor, error) {
	at.Stage++
	if at.Since.IsZero() {
		err := tx.QueryRow(ctx, `SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'convos'::regclass`).
			Scan(&at.About)
		if err != nil {
			return at, err
		}
	}
	return at, v.facts(ctx, tx)
}

// convosPage verifies the logs of the next convos.
func (v *verification) convosPage(ctx context.Context, tx pgx.Tx, at Cursor) (Cursor, error) {
	sql, args := `
		SELECT id, CASE WHEN id = $1 THEN $2::bigint ELSE 0 END, last_seq
		FROM convos
		WHERE id >= $1 AND (id > $1 OR $2::bigint > 0)
		ORDER BY id LIMIT $3`, []any{at.Convo, at.Seq, v.sizes.convos}
	scan := scanPiece
	if !at.Since.IsZero() {
		// A commit and a reset do not change last_message_at. A person can leave without an entry.
		sql, args, scan = `
		SELECT id, CASE WHEN unchanged THEN last_seq WHEN id = $1 THEN $2::bigint ELSE coalesce((
				SELECT seq FROM messages WHERE convo_id = c.id AND created_at < $4 ORDER BY seq DESC LIMIT 1
			), 0) END, last_seq, unchanged
		FROM (
			SELECT id, last_seq, greatest(created_at, last_message_at, closed_at,
				(SELECT created_at FROM messages WHERE convo_id = v.id AND seq = v.last_seq),
				(SELECT max(left_at) FROM members WHERE convo_id = v.id)) < $4 AS unchanged
			FROM convos v
			WHERE id >= $1 AND (id > $1 OR $2::bigint > 0)
			ORDER BY id LIMIT $3
		) c
		ORDER BY id`, append(args, at.Since), scanMaybeUnchanged
	}
	all, err := pgpool.Collect(ctx, tx, scan, sql, args...)
	if err != nil {
		return at, err
	}
	if len(all) > 0 && at.Seq > 0 && all[0].convo == at.Convo {
		all[0].begun = true
	}
	some, rest := v.cut(all)
	for _, p := range some {
		at.Convo, at.Seq = p.convo, 0
		at.Entries += max(p.upto-p.after, 0)
		if !p.begun && !p.unchanged {
			at.Convos++
		}
	}
	switch {
	case len(rest) > 0 && rest[0].begun:
		at.Seq = rest[0].after
	case len(rest) == 0 && len(all) < v.sizes.convos:
		at.Stage++
	}
	some = slices.DeleteFunc(some, func(p piece) bool { return p.unchanged })
	return at, v.logsPage(ctx, tx, some, at.firstDay())
}

// firstDay returns the first day of the stream that the check looks at. Days begin at midnight by
// the clock of the database, so an event can be in the stream under the day before.
func (c Cursor) firstDay() string {
	if c.Since.IsZero() {
		return "-infinity"
	}
	return c.Since.Add(-time.Hour).UTC().Format(time.DateOnly)
}

// peoplePage verifies the KeyPackages, records and push jobs of the next people. It searches for
// the next person in the indexes, because the tables have many rows of each person.
func (v *verification) peoplePage(ctx context.Context, tx pgx.Tx, at Cursor) (Cursor, error) {
	people, err := pgpool.Collect(ctx, tx, pgx.RowTo[string], `
		WITH RECURSIVE people (did, n) AS (
			SELECT $1::text COLLATE "C", 0
			UNION ALL
			SELECT least(
				(SELECT min(did) FROM members WHERE did > p.did),
				(SELECT min(did) FROM key_packages WHERE did > p.did),
				(SELECT min(did) FROM push_jobs WHERE did > p.did),
				(SELECT min(caller_did) FROM idempotency_keys WHERE caller_did > p.did AND caller_did < 'did;')), p.n + 1
			FROM people p WHERE p.did IS NOT NULL AND p.n < $2::bigint
		)
		SELECT did FROM people WHERE n > 0 AND did IS NOT NULL ORDER BY did`, at.Person, v.sizes.people)
	if err != nil || len(people) == 0 {
		at.Stage++
		return at, err
	}
	at.Person, at.People = people[len(people)-1], at.People+int64(len(people))
	return at, v.run(ctx, tx, peopleChecks, people)
}

// streamPage verifies the next rows of the stream.
func (v *verification) streamPage(ctx context.Context, tx pgx.Tx, at Cursor) (Cursor, error) {
	if at.Event == 0 {
		err := tx.QueryRow(ctx, `
			SELECT coalesce(max(first_seq) - 1, 0) FROM event_days WHERE day <= $1::date`, at.firstDay()).Scan(&at.Event)
		if err != nil {
			return at, err
		}
	}
	after, rows := at.Event, int64(0)
	err := tx.QueryRow(ctx, `
		SELECT coalesce(max(stream_seq), 0), count(*)
		FROM (SELECT stream_seq FROM events WHERE stream_seq > $1 ORDER BY stream_seq LIMIT $2) e`,
		after, v.sizes.events).Scan(&at.Event, &rows)
	if err != nil || rows == 0 {
		at.Stage++
		return at, err
	}
	at.Events += rows
	return at, v.run(ctx, tx, streamChecks, after, at.Event)
}

// dayPage verifies the next day of the stream's index.
func (v *verification) dayPage(ctx context.Context, tx pgx.Tx, at Cursor) (Cursor, error) {
	days, err := pgpool.Collect(ctx, tx, pgx.RowTo[string], `
		SELECT day::text FROM event_days WHERE day > $1::date AND day >= $2::date ORDER BY day LIMIT 1`,
		cmp.Or(at.Day, "-infinity"), at.firstDay())
	if err != nil || len(days) == 0 {
		at.Stage++
		return at, err
	}
	at.Day = days[0]
	return at, v.run(ctx, tx, dayChecks, at.Day)
}

// piece is a part of a convo's log: the entries after one entry, up to another.
type piece struct {
	convo       uuid.UUID
	after, upto int64
	begun       bool // it is not the first piece of its log
	unchanged   bool // in a check since a time: nothing of its convo has changed
}

// scanPiece reads a row of convo, after and upto.
func scanPiece(row pgx.CollectableRow) (p piece, err error) {
	return p, row.Scan(&p.convo, &p.after, &p.upto)
}

// scanMaybeUnchanged reads a row of convo, after, upto and unchanged.
func scanMaybeUnchanged(row pgx.CollectableRow) (p piece, err error) {
	return p, row.Scan(&p.convo, &p.after, &p.upto, &p.unchanged)
}

// cut returns the pieces of one page, and what is left. It divides a long piece.
func (v *verification) cut(all []piece) (page, rest []piece) {
	left := v.sizes.entries
	for i, p := range all {
		if i == v.sizes.convos || left == 0 {
			return all[:i:i], all[i:]
		}
		if n := p.upto - p.after; n > left {
			first, second := p, p
			first.upto, second.after, second.begun = p.after+left, p.after+left, true
			return append(all[:i:i], first), append([]piece{second}, all[i+1:]...)
		} else if n > 0 {
			left -= n
		}
	}
	return all, nil
}

// logs verifies pieces of logs, page by page.
func (v *verification) logs(ctx context.Context, db *pgxpool.Pool,
	list func(context.Context, pgx.Tx) ([]piece, error)) error {
	var page, rest []piece
	err := read(ctx, db, func(ctx context.Context, tx pgx.Tx) (err error) {
		rest, err = list(ctx, tx)
		return err
	})
	for err == nil && len(rest) > 0 {
		page, rest = v.cut(rest)
		err = read(ctx, db, func(ctx context.Context, tx pgx.Tx) error {
			return v.logsPage(ctx, tx, page, Cursor{}.firstDay())
		})
	}
	return err
}

// logsPage verifies pieces of logs, and with the first piece of each log what is stored of its
// convo. It looks at events from firstDay on.
func (v *verification) logsPage(ctx context.Context, tx pgx.Tx, page []piece, firstDay string) error {
	var convos, begin []uuid.UUID
	var afters, uptos []int64
	for _, p := range page {
		convos, afters, uptos = append(convos, p.convo), append(afters, p.after), append(uptos, p.upto)
		if !p.begun {
			begin = append(begin, p.convo)
		}
	}
	spans := []any{convos, afters, uptos}
	for _, part := range []func() error{
		func() error { return v.runConvos(ctx, tx, logChecks, spans...) },
		func() error {
			return v.verify(logPromise, func(found *findings) error { return checkObjects(ctx, tx, spans, found) })
		},
		func() error { return v.runConvos(ctx, tx, convoChecks, begin) },
		func() error {
			var end int64
			if err := tx.QueryRow(ctx, `SELECT last FROM convo_events_end`).Scan(&end); err != nil {
				return err
			}
			return v.runConvos(ctx, tx, entryChecks, begin, firstDay, end)
		},
		func() error { return v.runConvos(ctx, tx, rosterChecks, begin, firstDay) },
		func() error {
			return v.verify(groupsPromise, func(found *findings) error { return checkGroups(ctx, tx, begin, found) })
		},
	} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}
