package welcome

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
)

// Forget deletes the Welcomes of a convo that is being deleted. Purge deletes their bytes.
func Forget(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT id FROM welcomes WHERE convo_id = $1 ORDER BY id FOR UPDATE
		)
		DELETE FROM welcomes w USING locked WHERE w.convo_id = $1 AND w.id = locked.id`, convo)
	return errs.Wrap(err, "delete the Welcomes")
}

// Purge deletes the bytes of up to limit Welcomes of a deleted convo, and returns how many.
func Purge(ctx context.Context, tx pgx.Tx, convo uuid.UUID, limit int) (int64, error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM welcome_bodies
		WHERE convo_id = $1 AND epoch IN (SELECT epoch FROM welcome_bodies WHERE convo_id = $1 ORDER BY epoch LIMIT $2 FOR
			UPDATE)`, convo, limit)
	return tag.RowsAffected(), errs.Wrap(err, "delete the bytes of Welcomes")
}

// Revoke ends the Welcomes that are on their way to a device, in all convos of the device's owner,
// and returns how many. Only current members have such Welcomes.
func Revoke(ctx context.Context, tx pgx.Tx, d Device) (int64, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE welcomes SET state = 'superseded', version = version + 1
		WHERE (convo_id, id) IN (
			SELECT w.convo_id, w.id FROM members m JOIN welcomes w ON w.convo_id = m.convo_id AND w.recipient_did = m.did
			WHERE m.did = $1 AND m.left_at IS NULL AND w.device_id = $2 AND w.state IN ('available', 'in_flight')
			ORDER BY w.convo_id, w.id FOR UPDATE OF w)`, d.DID, d.DeviceID)
	return tag.RowsAffected(), errs.Wrap(err, "end a device's Welcomes")
}

// Erase puts the tombstone of a person into up to limit of the person's Welcomes in a convo, and
// deletes the error details that the person's devices have sent. It returns how many Welcomes it
// has changed, and whether there may be more. All of them have ended, because the person has left.
// The caller holds the convo's lock.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, convo uuid.UUID, limit int64) (n int64, more bool,
	err error) {
	tag, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT id FROM welcomes WHERE convo_id = $1 AND recipient_did = $2 ORDER BY id LIMIT $4 FOR UPDATE
		)
		UPDATE welcomes w
		SET recipient_did = $3, device_id = 'erased', last_error = NULL,
			last_failure = CASE WHEN last_failure IS NOT NULL THEN 'erased' END
		FROM locked
		WHERE w.convo_id = $1 AND w.id = locked.id`, convo, p.DID, p.In(convo), limit)
	return tag.RowsAffected(), tag.RowsAffected() == limit, errs.Wrap(err, "erase a recipient of Welcomes")
}
