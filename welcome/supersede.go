package welcome

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// The Welcomes of a person in a convo are locked in the order of their ids, by every statement that
// locks several. Otherwise two transactions could each wait for a Welcome that the other has locked.
// A transaction that locks Welcomes of several people holds the convo's lock.

// supersede ends the Welcomes that are on their way to devices in the convo $1. $2 and $3 are the
// devices' DIDs and ids, in parallel. An empty id is any device.
const supersede = `
	WITH locked AS MATERIALIZED (
		SELECT w.id
		FROM unnest($2::text[], $3::text[]) AS d (did, device_id) JOIN welcomes w ON w.recipient_did = d.did
		WHERE w.convo_id = $1 AND (d.device_id = '' OR w.device_id = d.device_id) AND w.state IN ('available', 'in_flight')
		ORDER BY w.id FOR UPDATE OF w
	)
	UPDATE welcomes w SET state = 'superseded', version = version + 1
	FROM locked
	WHERE w.convo_id = $1 AND w.id = locked.id`

// Supersede ends the Welcomes that are on their way to devices. They lead into an epoch that the
// devices are no longer in. It does not look at KeyPackageRef.
func Supersede(ctx context.Context, tx pgx.Tx, convo uuid.UUID, devices ...Device) error {
	if len(devices) == 0 {
		return nil
	}
	dids, ids := make([]syntax.DID, len(devices)), make([]string, len(devices))
	for i, d := range devices {
		dids[i], ids[i] = d.DID, d.DeviceID
	}
	_, err := tx.Exec(ctx, supersede, convo, dids, ids)
	return errs.Wrap(err, "supersede Welcomes")
}

// lock locks the Welcomes in the convo $1 of the people $2 that a commit or a device can still change.
const lock = `
	SELECT FROM welcomes
	WHERE convo_id = $1 AND recipient_did = ANY($2) AND (state IN ('available', 'in_flight') OR silent)
	ORDER BY id FOR UPDATE`

// Lock waits for the locks of all Welcomes of the people that have not ended with a confirmation,
// and takes them, in the order of ids. After it, no device can confirm one before tx ends.
func Lock(ctx context.Context, tx pgx.Tx, convo uuid.UUID, people []syntax.DID) error {
	_, err := tx.Exec(ctx, lock, convo, people)
	return errs.Wrap(err, "lock Welcomes")
}

// QueueLock adds Lock to a batch. A transaction that supersedes Welcomes with several statements
// locks those of all the people first, and before any KeyPackage.
func QueueLock(batch *pgx.Batch, convo uuid.UUID, people []syntax.DID) {
	batch.Queue(lock, convo, people)
}
