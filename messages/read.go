package messages

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// Window is the part of a log that a reader of commits is entitled to: First ≤ seq ≤ Last. The caller has it from the membership it
// checked, so that nothing committed after the check can slip in.
type Window struct {
	ConvoID     uuid.UUID
	First, Last int64
}

// Selection is which entries of a log a page holds.
type Selection string

// The selections.
const (
	Everything  Selection = "everything"
	NoCommits   Selection = "no commits" // application messages and proposals
	CommitsOnly Selection = "commits only"
)

// Page is what Reader asks for of a convo's log.
type Page struct {
	ConvoID  uuid.UUID
	Reader   syntax.DID
	After    int64      // the page begins behind this seq; 0 is the beginning of what Reader may read
	Behind   *uuid.UUID // and behind the message with this id
	Entries  Selection
	Limit    int   // messages
	MaxBytes int64 // of bodies; the first message is read whatever its size
}

// End says where a page ended.
type End struct {
	LastSeq int64 // of the whole log, at the moment of the page
	More    bool  // there is more to read behind the page
}

// selectPage reads a page and what entitles the reader to it in one statement, and so at one moment: what is committed after the
// membership was looked at cannot slip in. A member gets at least one row, a stranger none, and a former member none of the log.
// The parts in angle brackets are those of pageStatements.
const selectPage = `
	SELECT c.last_seq, me.left_at IS NOT NULL, (SELECT created_at FROM messages WHERE convo_id = $1 AND seq = $4),
		page.seq, page.kind, page.sender_did, page.epoch, page.body, page.embed_type, page.embed_uri, page.created_at, page.more
	FROM members me
	JOIN convos c ON c.id = me.convo_id
	LEFT JOIN LATERAL (
		SELECT seq, kind, sender_did, epoch, <body> AS body, embed_type, embed_uri, created_at, <more> AS more<totals>
		FROM messages
		WHERE convo_id = $1 AND me.left_at IS NULL
			AND seq BETWEEN greatest(me.joined_seq, $3::bigint + 1) AND least(c.last_seq, $5) <entries>
		<window>
		ORDER BY <order> LIMIT $6
	) page ON <fits>
	WHERE me.convo_id = $1 AND me.did = $2`

// pageStatement is selectPage for one selection, in its two forms.
type pageStatement struct {
	// small leaves out every body of more than $7 bytes. It has to keep nothing in memory, and says what is behind the page with one
	// row more.
	small string
	// large ends the page where its bodies come to more than $7 bytes in all, though not before the first if $8 says so. octet_length
	// of a TOASTed value reads its header only, so what is cut off is never loaded.
	large string
}

// pageStatements are the forms of selectPage. Commits are found by their own index, which is that of epochs: the first one behind a
// place in the log creates at least the epoch of the entry there.
var pageStatements = func() map[Selection]pageStatement {
	all := map[Selection]pageStatement{}
	for selection, where := range map[Selection]string{
		Everything: "",
		NoCommits:  "AND kind <> 3",
		CommitsOnly: `AND kind = 3 AND epoch >= (
			SELECT epoch FROM messages WHERE convo_id = $1 AND seq >= greatest(me.joined_seq, $3::bigint + 1) ORDER BY seq LIMIT 1)`,
	} {
		order := "seq"
		if selection == CommitsOnly {
			order = "epoch"
		}
		form := strings.NewReplacer("<entries>", where, "<order>", order).Replace(selectPage)
		all[selection] = pageStatement{
			small: strings.NewReplacer("<body>", "CASE WHEN octet_length(body) <= $7 THEN body END", "<more>", "false", "<totals>", "",
				"<window>", "", "<fits>", "true").Replace(form),
			large: strings.NewReplacer("<body>", "body", "<more>", "lead(true) OVER so_far IS NOT NULL",
				"<totals>", ", sum(octet_length(body)) OVER so_far AS total, row_number() OVER so_far AS nth",
				"<window>", "WINDOW so_far AS (ORDER BY "+order+" ROWS UNBOUNDED PRECEDING)",
				"<fits>", "page.total <= $7 OR (page.nth = 1 AND $8)").Replace(form),
		}
	}
	return all
}()

// Read calls each with the messages of p in log order, and says where they end. The message is each's until it returns; if that is
// false, the page ends before that message, which must not be its first. Errors: ErrConvoNotFound for strangers and for convos that
// never were, ErrNotMember for former members, ErrInvalidCursor; with any error that what each has got is void.
func Read(ctx context.Context, q pgpool.Queryer, p Page, each func(*Message) bool) (end End, err error) {
	r := reading{Page: p, each: each, upTo: math.MaxInt64, seqs: seqsOf(p.ConvoID), senders: map[string]syntax.DID{}}
	if p.Behind != nil {
		r.cursor = max(r.seqs.seq(*p.Behind), 0)
		r.After = max(r.After, r.cursor)
	}
	// A page of so many small bodies is within its bound whatever they are, so it needs no sums. Most pages are.
	small := p.MaxBytes / int64(p.Limit+1)
	statement := pageStatements[p.Entries]
	cut, err := r.run(ctx, q, statement.small, p.Limit+1, small)
	if err == nil && cut {
		r.upTo = r.LastSeq
		_, err = r.run(ctx, q, statement.large, p.Limit-r.n, p.MaxBytes-r.bytes, r.n == 0)
	}
	switch {
	case errors.Is(err, ErrConvoNotFound), errors.Is(err, ErrNotMember), errors.Is(err, ErrInvalidCursor):
		return End{}, err
	case err != nil:
		return End{}, fmt.Errorf("read messages: %w", err)
	}
	return r.End, nil
}

// reading is a page on its way.
type reading struct {
	Page    // After moves on
	End     // so far
	each    func(*Message) bool
	seqs    seqs
	cursor  int64 // seq that Behind stands for
	upTo    int64 // seq
	n       int   // messages read
	bytes   int64 // of their bodies
	senders map[string]syntax.DID
}

// run reads on by one of the two statements. It reports whether it has come to a body that was left out.
func (r *reading) run(ctx context.Context, q pgpool.Queryer, statement string, limit int, bounds ...any) (cut bool, err error) {
	rows, err := q.Query(ctx, statement, append([]any{r.ConvoID, r.Reader, r.After, r.cursor, r.upTo, limit}, bounds...)...)
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
		body, sender pgtype.DriverBytes // of the connection: it is read over by the next row
		kind         int16
		more         bool
	)
	to := []any{nil, nil, nil, &m.Seq, &kind, &sender, &m.Epoch, &body, &m.EmbedType, &m.EmbedURI, &m.CreatedAt, &more}
	const seqColumn = 3
	for next := rows.RawValues()[seqColumn] != nil; next; next = rows.Next() {
		if err := rows.Scan(to...); err != nil {
			return false, err
		}
		if r.n == r.Limit || body == nil { // one row more than the page has, or one whose body is too large
			r.More = true
			return r.n < r.Limit, nil
		}
		if m.Seq <= r.After { // the statement leaves the order to the one index that it can use
			return false, fmt.Errorf("seq %d comes behind %d", m.Seq, r.After)
		}
		m.Sender, m.Body, m.Kind, m.ID = r.senderOf(sender), body, mls.ContentType(kind), r.seqs.id(m.Seq, m.CreatedAt)
		if !r.each(&m) {
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

// admit looks at what the statement says of the reader, and of the cursor. The message that this names may have expired: the id says
// itself which one it was.
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
	if left {
		return ErrNotMember
	}
	if r.Behind != nil {
		if r.cursor < 1 || r.cursor > last {
			return ErrInvalidCursor
		}
		at := timeOf(*r.Behind) // if nobody knows better: the log is dense, so the message has expired
		if cursorAt != nil {
			at = *cursorAt
		}
		if r.seqs.id(r.cursor, at) != *r.Behind {
			return ErrInvalidCursor
		}
	}
	r.LastSeq = min(last, r.upTo)
	return nil
}

// senderOf is text as a string, of which there is one for each sender.
func (r *reading) senderOf(text []byte) syntax.DID {
	did, known := r.senders[string(text)]
	if !known {
		did = syntax.DID(text)
		r.senders[string(did)] = did
	}
	return did
}

// Commits calls each with the commits that create the epochs from ≤ epoch ≤ to, in order, as many as maxBytes of bodies allow and at
// least one. The commit is each's until it returns; if that is false, they end before it. With an error what each has got is void.
func Commits(
	ctx context.Context, q pgpool.Queryer, w Window, from, to int64, limit int, maxBytes int64, each func(*Message) bool,
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
		if !each(&m) {
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

// Load returns the entries that refs name, by ref. What is not there any more is left out. It is for whoever has seen to it that
// they may be read, and that they fit into memory.
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
