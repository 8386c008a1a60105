package messages

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// Window is the part of a log that a reader of commits may read: First ≤ seq ≤ Last. It comes from
// the membership that the caller has checked, so an entry that is committed after the check is
// outside the window.
type Window struct {
	ConvoID     uuid.UUID
	First, Last int64
}

// Selection says which entries of a log a page holds.
type Selection string

// The selections.
const (
	Everything  Selection = "everything"
	NoCommits   Selection = "no commits" // application messages and proposals
	CommitsOnly Selection = "commits only"
)

// Page is the part of a convo's log that Reader asks for.
type Page struct {
	ConvoID  uuid.UUID
	Reader   syntax.DID
	After    int64      // the page begins after this seq; 0 is the beginning of what Reader may read
	Behind   *uuid.UUID // the page also begins after the message with this id
	Former   bool       // if Reader has left, it reads what was written before
	Entries  Selection
	Limit    int   // how many messages, at most
	MaxBytes int64 // how many bytes of bodies, at most; the first message is read even if it is larger
	// SmallBytes is how many bytes of bodies Read returns before it calls Large, at most MaxBytes.
	SmallBytes int64
	// Large is called before Read reads more than SmallBytes. It returns how many more bytes the
	// page can have. Read holds no database connection during the call. If Large is nil, the page
	// can have MaxBytes.
	Large func() (maxBytes int64, err error)
}

// End says where a page ended.
type End struct {
	LastSeq int64 // last seq of the whole log, when the page was read; for a former member, when it left
	More    bool  // there is more to read after the page
}

// The statements that read a page. Most pages are small. The statements for large pages count the
// bytes of bodies.
var (
	//go:embed page_small.sql
	smallPage string
	//go:embed page_large.sql
	largePage string
	//go:embed commits_small.sql
	smallCommits string
	//go:embed commits_large.sql
	largeCommits string
)

// Read calls yield with the messages of p in log order, and returns where the page ended. A message
// is valid until yield returns. If yield returns false, the page ends before that message, which
// must not be the first. After an error, drop what yield got.
//
// Errors: ErrConvoNotFound for readers who were never members, and for convos that do not exist;
// ErrNotMember for former members, unless p.Former is set and there is something for them;
// ErrInvalidCursor; the errors of p.Large.
func Read(ctx context.Context, q pgpool.Queryer, p Page, yield func(*Message) bool) (end End, err error) {
	r := reading{Page: p, yield: yield, upTo: math.MaxInt64, seqs: seqsOf(p.ConvoID), senders: map[string]syntax.DID{}}
	if p.Behind != nil {
		r.cursor = max(r.seqs.seq(*p.Behind), 0)
		r.After = max(r.After, r.cursor)
	}
	cut, err := r.runSmall(ctx, q)
	if err == nil && cut {
		r.upTo = r.LastSeq
		left := p.MaxBytes - r.bytes
		if p.Large != nil {
			allowed, err := p.Large()
			if err != nil {
				return End{}, err
			}
			left = min(left, allowed)
		}
		err = r.runLarge(ctx, q, left)
	}
	switch {
	case errors.Is(err, ErrConvoNotFound), errors.Is(err, ErrNotMember), errors.Is(err, ErrInvalidCursor):
		return End{}, err
	case err != nil:
		return End{}, fmt.Errorf("read messages: %w", err)
	}
	return r.End, nil
}

// reading is the state of a call of Read.
type reading struct {
	Page    // After is the seq of the last message that was read
	End     // where the page ends so far
	yield   func(*Message) bool
	seqs    seqs
	cursor  int64 // the seq that Behind stands for
	upTo    int64 // last seq that may be read
	n       int   // messages read
	bytes   int64 // bytes of their bodies
	senders map[string]syntax.DID
}

// runSmall reads messages up to the first large body, because a page of large bodies could exceed
// SmallBytes. cut reports whether there is a large body.
func (r *reading) runSmall(ctx context.Context, q pgpool.Queryer) (cut bool, err error) {
	args := r.args(r.Limit+1, r.SmallBytes/int64(r.Limit+1))
	if r.Entries == CommitsOnly {
		return r.read(q.Query(ctx, smallCommits, args))
	}
	return r.read(q.Query(ctx, smallPage, args))
}

// runLarge reads the rest of the page, up to the given bytes of bodies.
func (r *reading) runLarge(ctx context.Context, q pgpool.Queryer, bytes int64) (err error) {
	args := r.args(r.Limit-r.n, bytes)
	if r.Entries == CommitsOnly {
		_, err = r.read(q.Query(ctx, largeCommits, args))
		return err
	}
	_, err = r.read(q.Query(ctx, largePage, args))
	return err
}

// args are the parameters of the statements that read a page.
func (r *reading) args(limit int, bytes int64) pgx.NamedArgs {
	return pgx.NamedArgs{
		"convo": r.ConvoID, "reader": r.Reader, "after": r.After, "cursor": r.cursor, "upto": r.upTo, "limit": limit,
		"bytes": bytes, "commits": r.Entries == Everything, "first": r.n == 0, "former": r.Former,
	}
}

// read reads the rows of a statement. cut reports whether the statement has left out a body.
func (r *reading) read(rows pgx.Rows, err error) (cut bool, _ error) {
	if err != nil {
		return false, err
	}
	defer rows.Close()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return false, err
		}
		return false, ErrConvoNotFound
	}
	if err := r.admit(rows); err != nil {
		return false, err
	}
	m := Message{ConvoID: r.ConvoID}
	var (
		body, sender pgtype.DriverBytes // memory of the connection, which the next row overwrites
		kind         int16
		more         bool
	)
	to := []any{nil, nil, nil, &m.Seq, &kind, &sender, &m.Epoch, &body, &m.EmbedType, &m.EmbedURI, &m.CreatedAt, &more}
	for next := rows.RawValues()[seqColumn] != nil; next; next = rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return false, err
		}
		if r.n == r.Limit || body == nil { // the row after the page, or a row whose body is too large
			r.More = true
			return r.n < r.Limit, nil
		}
		if m.Seq <= r.After { // the statement orders commits by epoch, which must be the order of seq
			return false, fmt.Errorf("seq %d comes behind %d", m.Seq, r.After)
		}
		m.Sender, m.Body, m.Kind, m.ID = r.senderOf(sender), body, mls.ContentType(kind), r.seqs.id(m.Seq, m.CreatedAt)
		if !r.yield(&m) {
			r.More = true
			return false, nil
		}
		r.After = m.Seq
		r.n++
		r.bytes += int64(len(body))
		r.More = more
	}
	return false, rows.Err()
}

// seqColumn is the first column of a page's rows that belongs to a message. It is NULL in a row without one.
const seqColumn = 3

// admit checks the reader and the cursor. The message of the cursor may have expired, but its id
// still gives its seq.
func (r *reading) admit(rows pgx.Rows) error {
	var (
		last     int64
		left     bool
		cursorAt *time.Time
	)
	to := make([]any, len(rows.FieldDescriptions()))
	to[0], to[1], to[2] = &last, &left, &cursorAt
	if err := rows.Scan(to...); err != nil {
		return err
	}
	invalid := ErrInvalidCursor
	if left {
		invalid = ErrNotMember
		if r.n == 0 && rows.RawValues()[seqColumn] == nil {
			return ErrNotMember
		}
	}
	if r.Behind != nil {
		if r.cursor < 1 || r.cursor > last {
			return invalid
		}
		at := timeOf(*r.Behind) // the log is dense, so a message that is missing has expired
		if cursorAt != nil {
			at = *cursorAt
		}
		if r.seqs.id(r.cursor, at) != *r.Behind {
			return invalid
		}
	}
	r.LastSeq = min(last, r.upTo)
	return nil
}

// senderOf returns text as a string. It allocates one string for each sender.
func (r *reading) senderOf(text []byte) syntax.DID {
	did, known := r.senders[string(text)]
	if !known {
		did = syntax.DID(text)
		r.senders[string(did)] = did
	}
	return did
}

// Commits calls yield, in order, with the commits that create the epochs from, from+1, … to. It
// reads at least one commit, and no more than maxBytes of bodies. A commit is valid until yield
// returns. If yield returns false, the result ends before that commit. After an error, drop what
// yield got.
func Commits(
	ctx context.Context, q pgpool.Queryer, w Window, from, to int64, limit int, maxBytes int64, yield func(*Message) bool,
) (err error) {
	defer wrap(&err, "read commits")
	rows, err := q.Query(ctx, `
		SELECT seq, sender_did, epoch, body, created_at
		FROM (
			SELECT *, sum(octet_length(body)) OVER so_far AS total, row_number() OVER so_far AS nth
			FROM messages
			WHERE convo_id = $1 AND kind = 3 AND epoch BETWEEN $2 AND $3 AND seq BETWEEN $4 AND $5
			WINDOW so_far AS (ORDER BY epoch ROWS UNBOUNDED PRECEDING)
			ORDER BY epoch LIMIT $6
		) page
		WHERE total <= $7 OR nth = 1
		ORDER BY epoch`,
		w.ConvoID, from, to, w.First, w.Last, limit, maxBytes)
	if err != nil {
		return err
	}
	defer rows.Close()
	m, seqs := Message{ConvoID: w.ConvoID, Kind: mls.ContentTypeCommit}, seqsOf(w.ConvoID)
	var body pgtype.DriverBytes
	for rows.Next() {
		if err := rows.Scan(&m.Seq, &m.Sender, &m.Epoch, &body, &m.CreatedAt); err != nil {
			return err
		}
		m.Body, m.ID = body, seqs.id(m.Seq, m.CreatedAt)
		if !yield(&m) {
			return nil
		}
	}
	return rows.Err()
}

// Ref names an entry of a convo's log.
type Ref struct {
	ConvoID uuid.UUID
	Seq     int64
}

// Load returns the entries that refs names, without entries that no longer exist. The caller must
// have checked that the entries can be read and fit into memory.
func Load(ctx context.Context, q pgpool.Queryer, refs []Ref) (found map[Ref]*Message, err error) {
	defer wrap(&err, "load messages")
	convos, seqs := make([]uuid.UUID, len(refs)), make([]int64, len(refs))
	for i, r := range refs {
		convos[i], seqs[i] = r.ConvoID, r.Seq
	}
	rows, err := q.Query(ctx, `
		SELECT m.convo_id, m.seq, m.kind, m.sender_did, m.epoch, m.body, m.embed_type, m.embed_uri, m.created_at
		FROM unnest($1::uuid[], $2::bigint[]) AS r (convo_id, seq)
		CROSS JOIN LATERAL (SELECT * FROM messages WHERE convo_id = r.convo_id AND seq = r.seq LIMIT 1) m`, convos, seqs)
	if err != nil {
		return nil, err
	}
	found = make(map[Ref]*Message, len(refs))
	for rows.Next() {
		m, kind := new(Message), int16(0)
		err := rows.Scan(&m.ConvoID, &m.Seq, &kind, &m.Sender, &m.Epoch, &m.Body, &m.EmbedType, &m.EmbedURI, &m.CreatedAt)
		if err != nil {
			rows.Close()
			return nil, err
		}
		m.Kind, m.ID = mls.ContentType(kind), idOf(m.ConvoID, m.Seq, m.CreatedAt)
		found[Ref{m.ConvoID, m.Seq}] = m
	}
	return found, rows.Err()
}

func wrap(err *error, doing string) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", doing, *err)
	}
}
