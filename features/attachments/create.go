package attachments

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/messages"
)

// Announcement is what a member says about a file before uploading it.
type Announcement struct {
	Window messages.Window // the caller's window of the log
	Caller syntax.DID
	Size   int64
	SHA256 [32]byte
}

// Create makes an attachment. If the convo has an attachment with the same content, Create returns
// that one, because a convo has each content once. made says which. Errors: ErrTooLarge,
// ErrOtherSize, ErrEarlier; messages.ErrConvoNotFound and messages.ErrConvoClosed if the convo was
// deleted or closed.
func (s *Service) Create(ctx context.Context, tx pgx.Tx, in Announcement) (_ *Attachment, made bool, err error) {
	if in.Size > s.cfg.MaxSize {
		return nil, false, fmt.Errorf("%w: %d bytes, and at most %d are taken", ErrTooLarge, in.Size, s.cfg.MaxSize)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, false, fmt.Errorf("make an id: %w", err)
	}
	a := &Attachment{ID: id, ConvoID: in.Window.ConvoID, Sender: in.Caller, Size: in.Size, SHA256: in.SHA256,
		PartSize: PartSize, State: Uploading}
	// The lock keeps the convo until the row exists, so that a deletion of the convo finds the row.
	var closed bool
	var successor uuid.NullUUID
	err = tx.QueryRow(ctx, `SELECT closed_at IS NOT NULL, successor_id FROM convos WHERE id = $1 FOR KEY SHARE`,
		a.ConvoID).Scan(&closed, &successor)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, messages.ErrConvoNotFound
	}
	if err != nil {
		return nil, false, fmt.Errorf("lock the convo: %w", err)
	}
	if closed {
		return nil, false, messages.Closed(successor.UUID)
	}
	for {
		tag, err := tx.Exec(ctx, `
			INSERT INTO attachments (id, convo_id, sender_did, size, sha256, part_size) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (convo_id, sha256) WHERE state IN ('uploading', 'checking', 'complete') DO NOTHING`,
			a.ID, a.ConvoID, a.Sender, a.Size, a.SHA256[:], a.PartSize)
		if err != nil {
			return nil, false, fmt.Errorf("announce: %w", err)
		}
		if tag.RowsAffected() == 1 {
			return a, true, nil
		}
		first, err := same(ctx, tx, in)
		if !errors.Is(err, pgx.ErrNoRows) { // otherwise it was deleted at this moment
			return first, false, err
		}
	}
}

// same finds the attachment with the announced content, and prevents its deletion. Errors:
// pgx.ErrNoRows, other errors of the database.
func same(ctx context.Context, tx pgx.Tx, in Announcement) (*Attachment, error) {
	var id uuid.UUID
	err := tx.QueryRow(ctx, `
		SELECT id FROM attachments WHERE convo_id = $1 AND sha256 = $2 AND state IN ('uploading', 'checking', 'complete') FOR
			SHARE`,
		in.Window.ConvoID, in.SHA256[:]).Scan(&id)
	if err != nil {
		return nil, fmt.Errorf("find the same content: %w", err)
	}
	a, err := find(ctx, tx, in.Window, id)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, ErrEarlier
	case err != nil:
		return nil, err
	case a.Size != in.Size:
		return nil, fmt.Errorf("%w: %d bytes, and not %d", ErrOtherSize, a.Size, in.Size)
	}
	return a, nil
}
