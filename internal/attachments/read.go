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

// Content is a part of an attachment's bytes: Length of them, from Offset on. It must be closed.
type Content struct {
	*Attachment
	Offset, Length int64
	store          Store
	ctx            context.Context
	parts          []partRow
	at, end        int64         // in the attachment
	open           io.ReadCloser // the rest of the part at at; nil: none is open
}

// Open returns the bytes of a complete attachment. They are read from the store while ctx lasts. A
// member reads it whose part of the log reaches back to its place: the window is what getMessages and
// getCommits read by. Errors: ErrNotFound, *IncompleteError, *FailedError.
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
		return nil, ErrNotFound // deleted in this moment
	}
	return c, err
}

// Select limits the content to length bytes from offset on, or as many as there are. It must be
// called before the first Read. It reports whether there are any.
func (c *Content) Select(offset, length int64) bool {
	if offset < 0 || offset >= c.Size || length < 1 {
		return false
	}
	c.Offset, c.Length = offset, min(length, c.Size-offset)
	c.at, c.end = offset, offset+c.Length
	return true
}

// Read implements io.Reader. Error besides: *IncompleteError, if the store has lost a part.
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

// CanName checks that a member can send a message that names an attachment. Error: ErrNotFound if the
// convo has no such attachment that is complete and that the member can read.
func CanName(ctx context.Context, q pgpool.Queryer, w messages.Window, id uuid.UUID) error {
	a, err := find(ctx, q, w, id)
	if err == nil && a.State != Complete {
		err = ErrNotFound
	}
	return err
}

// Name queues the statement that records that the message of a sender under a key names an
// attachment. It runs behind the append of the message, in its transaction. From the commit on those
// can read the attachment who can read the message, and its retention is that of the message. It
// changes nothing if the message was refused, or is the repetition of an earlier one.
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
