package attachments

import (
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
	"mlsd/messages"
)

// A deletion marks the row. Once it is committed, nobody can read the attachment. The sweeper
// deletes the objects, and then the row. touched_at says since when the sweeper has to do this.

// Delete deletes an attachment for the person who announced it. To delete it again is ErrNotFound.
// Errors: ErrNotFound, ErrNotPermitted, errors of the database.
func Delete(ctx context.Context, tx pgx.Tx, w messages.Window, caller syntax.DID, id uuid.UUID) error {
	a, err := find(ctx, tx, w, id)
	if err != nil {
		return err
	}
	if a.Sender != caller {
		return ErrNotPermitted
	}
	tag, err := tx.Exec(ctx,
		`UPDATE attachments SET state = 'deleted', touched_at = clock_timestamp() WHERE id = $1 AND state <> 'deleted'`, id)
	if err != nil {
		return fmt.Errorf("delete an attachment: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrNotFound
	}
	return nil
}

// purgeSQL deletes $2 attachments of the convo $1.
const purgeSQL = `
	UPDATE attachments SET state = 'deleted', touched_at = clock_timestamp()
	WHERE id IN (SELECT id FROM attachments WHERE convo_id = $1 AND state <> 'deleted' LIMIT $2 FOR UPDATE)`

// Purge deletes up to limit attachments of a convo that has been deleted, and returns how many it
// deleted.
func Purge(ctx context.Context, tx pgx.Tx, convo uuid.UUID, limit int) (int64, error) {
	tag, err := tx.Exec(ctx, purgeSQL, convo, limit)
	return tag.RowsAffected(), errs.Wrap(err, "delete the attachments")
}

// Erase deletes up to limit attachments that a person has announced, and removes the person's name
// from them.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (int64, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE attachments SET state = 'deleted', sender_did = $2, touched_at = CASE WHEN state = 'deleted' THEN touched_at
			ELSE clock_timestamp() END
		WHERE id IN (SELECT id FROM attachments WHERE sender_did = $1 LIMIT $3 FOR UPDATE)`, p.DID, p.Anywhere(), limit)
	return tag.RowsAffected(), errs.Wrap(err, "erase attachments")
}
