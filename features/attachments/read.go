package attachments

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/messages"
)

// Content is a part of an attachment: Length bytes, from Offset on. The caller must close it.
type Content struct {
	*Attachment
	Offset, Length int64
	store          Store
	ctx            context.Context
	parts          []partRow
	at, end        int64         // range in the attachment that is still to be read
	open           io.ReadCloser // rest of the part at the place at; nil if none is open
}

// Open returns the bytes of a complete attachment. Reads from the store end when ctx ends. A member
// can read the attachment if its place in the log is in the member's window, which also decides
// what getMessages and getCommits return. Errors: ErrNotFound, *IncompleteError, *FailedError.
func (s *Service) Open(ctx context.Context, q pgpool.Queryer, w messages.Window, id uuid.UUID) (*Content, error) {
	a, err := find(ctx, q, w, id)
	switch {
	case err != nil:
		return nil, err
	case a.State == Failed:
		return nil, &FailedError{a.Failure}
	case a.State != Complete:
		return nil, &IncompleteError{}
	}
	c := &Content{Attachment: a, Length: a.Size, store: s.cfg.Store, ctx: ctx, end: a.Size}
	c.parts, err = partsOf(ctx, q, id)
	if err == nil && len(c.parts) != a.Parts() {
		return nil, ErrNotFound // it was deleted at this moment
	}
	return c, err
}

// Select limits the content to length bytes from offset on, or to fewer if there are fewer. It must
// be called before the first Read. It reports whether there are any bytes.
func (c *Content) Select(offset, length int64) bool {
	if offset < 0 || offset >= c.Size || length < 1 {
		return false
	}
	c.Offset, c.Length = offset, min(length, c.Size-offset)
	c.at, c.end = offset, offset+c.Length
	return true
}

// Read implements io.Reader. Errors: *IncompleteError, if the store has lost a part; errors of the
// store.
func (c *Content) Read(p []byte) (int, error) {
	if c.at == c.end {
		return 0, io.EOF
	}
	if c.open == nil {
		i, skip := int(c.at/c.PartSize), c.at%c.PartSize
		n := min(c.length(i+1)-skip, c.end-c.at)
		body, err := c.store.Open(c.ctx, c.parts[i].object, skip, n)
		if errors.Is(err, ErrNoObject) {
			return 0, &IncompleteError{Missing: []int{i + 1}, Lost: true}
		}
		if err != nil {
			return 0, fmt.Errorf("%w: open: %w", ErrStore, err)
		}
		c.open = body
	}
	n, err := c.open.Read(p[:min(int64(len(p)), c.end-c.at)])
	c.at += int64(n)
	switch boundary := c.at%c.PartSize == 0 || c.at == c.end; {
	case boundary && (err == nil || errors.Is(err, io.EOF)) && n > 0:
		return n, c.Close()
	case errors.Is(err, io.EOF):
		return n, fmt.Errorf("%w: an object is too short", ErrStore)
	case err != nil:
		return n, fmt.Errorf("%w: read: %w", ErrStore, err)
	}
	return n, nil
}

// Close implements io.Closer.
func (c *Content) Close() error {
	if c.open == nil {
		return nil
	}
	err := c.open.Close()
	c.open = nil
	return err
}

// CanName checks that a member can send a message that names an attachment. The error is
// ErrNotFound if the convo has no such attachment, or if it is not complete or the member cannot
// read it.
func CanName(ctx context.Context, q pgpool.Queryer, w messages.Window, id uuid.UUID) error {
	a, err := find(ctx, q, w, id)
	if err == nil && a.State != Complete {
		err = ErrNotFound
	}
	return err
}

// Name queues the statement that records that a message names an attachment. sender and key
// identify the message. The statement runs after the append of the message, in the same
// transaction. Once it is committed, everybody who can read the message can read the attachment,
// and both have the same retention. If the message was refused, or repeats an earlier message, the
// statement changes nothing.
func Name(convo, id uuid.UUID, sender syntax.DID, key string) func(*pgx.Batch) {
	return func(b *pgx.Batch) {
		b.Queue(`
			UPDATE attachments a SET seq = greatest(a.seq, m.seq), kept_from = greatest(a.kept_from, m.created_at)
			FROM messages m
			WHERE a.id = $1 AND a.convo_id = $2 AND a.state = 'complete' AND (a.seq < m.seq OR a.kept_from < m.created_at)
				AND m.convo_id = $2 AND m.sender_did = $3 AND m.idempotency_key = $4 AND m.kind <> 3 AND m.embed_uri = $5`,
			id, convo, sender, key, uriPrefix+id.String())
	}
}
