package messages

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// Window is the part of a log that a reader is entitled to: First ≤ seq ≤ Last. The caller has it from the membership it
// checked, so that nothing committed after the check can slip in.
type Window struct {
	ConvoID     uuid.UUID
	First, Last int64
}

// Page asks for messages behind After.
type Page struct {
	Window
	After    int64 // seq; 0 is the beginning
	Limit    int   // messages
	MaxBytes int64 // of bodies; the first message is returned whatever its size
	Kinds    []mls.ContentType
}

// Read returns the messages of p in log order, and whether there are more behind them.
func Read(ctx context.Context, q pgpool.Queryer, p Page) (page []Message, more bool, err error) {
	defer wrap(&err, "read messages")
	kinds := make([]int16, len(p.Kinds))
	for i, k := range p.Kinds {
		kinds[i] = int16(k)
	}
	// octet_length of a TOASTed value reads its header only, so what the byte bound cuts off is never loaded.
	rows, err := q.Query(ctx, `
		SELECT m.seq, m.kind, m.sender_did, m.epoch, m.body, m.embed_type, m.embed_uri, m.created_at
		FROM (
			SELECT seq, sum(octet_length(body)) OVER (ORDER BY seq) AS total, row_number() OVER (ORDER BY seq) AS nth
			FROM messages
			WHERE convo_id = $1 AND seq BETWEEN greatest($2, $4::bigint + 1) AND $3 AND kind = ANY($5)
			ORDER BY seq LIMIT $6
		) page
		CROSS JOIN LATERAL (SELECT * FROM messages WHERE convo_id = $1 AND seq = page.seq LIMIT 1) m
		WHERE page.total <= $7 OR page.nth = 1
		ORDER BY m.seq`,
		p.ConvoID, p.First, p.Last, p.After, kinds, p.Limit+1, p.MaxBytes)
	if err != nil {
		return nil, false, err
	}
	page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Message, error) {
		m := Message{ConvoID: p.ConvoID}
		var kind int16
		err := row.Scan(&m.Seq, &kind, &m.Sender, &m.Epoch, &m.Body, &m.EmbedType, &m.EmbedURI, &m.CreatedAt)
		m.Kind = mls.ContentType(kind)
		m.ID = idOf(m.ConvoID, m.Seq, m.CreatedAt)
		return m, err
	})
	if err != nil || len(page) == 0 {
		return nil, false, err
	}
	if len(page) > p.Limit {
		return page[:p.Limit], true, nil
	}
	// The log has ended, or the byte bound has cut the page.
	err = q.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM messages WHERE convo_id = $1 AND seq > $2 AND seq <= $3 AND kind = ANY($4))`,
		p.ConvoID, page[len(page)-1].Seq, p.Last, kinds).Scan(&more)
	return page, more, err
}

// SeqOf returns the seq of the message with this id. It may be behind w.First, and the message may have expired: the id says its seq
// itself. The error is ErrInvalidCursor if the log holds, and held, no such message up to w.Last.
func SeqOf(ctx context.Context, q pgpool.Queryer, w Window, id uuid.UUID) (int64, error) {
	seq := seqOf(w.ConvoID, id)
	if seq < 1 || seq > w.Last { // behind First is fine: a member who came back may still have its old cursor
		return 0, ErrInvalidCursor
	}
	var at time.Time
	err := q.QueryRow(ctx, `SELECT created_at FROM messages WHERE convo_id = $1 AND seq = $2`, w.ConvoID, seq).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		at = timeOf(id) // the log is dense, so this one has expired, and nobody knows better any more
	} else if err != nil {
		return 0, fmt.Errorf("find the cursor: %w", err)
	}
	if idOf(w.ConvoID, seq, at) != id {
		return 0, ErrInvalidCursor
	}
	return seq, nil
}

// Commits returns the commits that create the epochs from ≤ epoch ≤ to, in order, as many as maxBytes of bodies allow and at
// least one.
func Commits(ctx context.Context, q pgpool.Queryer, w Window, from, to int64, limit int, maxBytes int64) (commits []Message, err error) {
	defer wrap(&err, "read commits")
	rows, err := q.Query(ctx, `
		SELECT m.seq, m.sender_did, m.epoch, m.body, m.created_at
		FROM (
			SELECT seq, sum(octet_length(body)) OVER (ORDER BY epoch) AS total, row_number() OVER (ORDER BY epoch) AS nth
			FROM messages
			WHERE convo_id = $1 AND kind = 3 AND epoch BETWEEN $2 AND $3 AND seq BETWEEN $4 AND $5
			ORDER BY epoch LIMIT $6
		) page
		CROSS JOIN LATERAL (SELECT * FROM messages WHERE convo_id = $1 AND seq = page.seq LIMIT 1) m
		WHERE page.total <= $7 OR page.nth = 1
		ORDER BY m.epoch`,
		w.ConvoID, from, to, w.First, w.Last, limit, maxBytes)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Message, error) {
		m := Message{ConvoID: w.ConvoID, Kind: mls.ContentTypeCommit}
		err := row.Scan(&m.Seq, &m.Sender, &m.Epoch, &m.Body, &m.CreatedAt)
		m.ID = idOf(m.ConvoID, m.Seq, m.CreatedAt)
		return m, err
	})
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
