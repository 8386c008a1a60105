package welcome

import (
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/mls"
	"mlsd/outbox"
	"mlsd/push"
)

// Recipient is a device that a Welcome names by its KeyPackageRef.
type Recipient struct {
	DID      syntax.DID
	DeviceID string
	Ref      mls.KeyPackageRef
}

// Deposit makes the Welcome that leads into epoch available to each recipient, inside the transaction of its commit. Older
// Welcomes of the same device give way to it. The Welcome stands on its own from here: what becomes of the KeyPackage no
// longer matters.
func Deposit(ctx context.Context, tx pgx.Tx, convo uuid.UUID, epoch int64, body []byte, to []Recipient) error {
	n := len(to)
	ids, dids, devices, refs := make([]uuid.UUID, n), make([]syntax.DID, n), make([]string, n), make([][]byte, n)
	for i, r := range to {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("mint a Welcome id: %w", err)
		}
		ids[i], dids[i], devices[i], refs[i] = id, r.DID, r.DeviceID, r.Ref
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO welcome_bodies (convo_id, epoch, body, created_at) VALUES ($1, $2, $3, clock_timestamp())`,
		convo, epoch, body)
	batch.Queue(`
		UPDATE welcomes w SET state = 'superseded', version = version + 1
		FROM unnest($2::text[], $3::text[]) AS r (did, device_id)
		WHERE w.convo_id = $1 AND w.recipient_did = r.did AND w.device_id = r.device_id
			AND w.state IN ('available', 'in_flight')`,
		convo, dids, devices)
	batch.Queue(`
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, created_at)
		SELECT $1, r.id, r.did, r.device_id, r.ref, $2, clock_timestamp()
		FROM unnest($3::uuid[], $4::text[], $5::text[], $6::bytea[]) AS r (id, did, device_id, ref)`,
		convo, epoch, ids, dids, devices, refs)
	outbox.NoteWelcomes(batch, convo, epoch, dids, devices, refs)
	push.QueueWelcome(batch, dids, devices)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("deposit the Welcome: %w", err)
	}
	return nil
}

// Supersede ends the Welcomes that are still on their way to members who left or were removed: they lead into an epoch that
// their recipients are no longer in.
func Supersede(ctx context.Context, tx pgx.Tx, convo uuid.UUID, recipients []syntax.DID) error {
	_, err := tx.Exec(ctx, `
		UPDATE welcomes SET state = 'superseded', version = version + 1
		WHERE convo_id = $1 AND recipient_did = ANY($2) AND state IN ('available', 'in_flight')`, convo, recipients)
	if err != nil {
		return fmt.Errorf("supersede Welcomes: %w", err)
	}
	return nil
}

// SupersedeDevices ends the Welcomes that are still on their way to these devices.
func SupersedeDevices(ctx context.Context, tx pgx.Tx, convo uuid.UUID, devices []Device) error {
	if len(devices) == 0 {
		return nil
	}
	dids, ids := make([]syntax.DID, len(devices)), make([]string, len(devices))
	for i, d := range devices {
		dids[i], ids[i] = d.DID, d.DeviceID
	}
	_, err := tx.Exec(ctx, `
		UPDATE welcomes w SET state = 'superseded', version = version + 1
		FROM unnest($2::text[], $3::text[]) AS d (did, device_id)
		WHERE w.convo_id = $1 AND w.recipient_did = d.did AND w.device_id = d.device_id AND w.state IN ('available', 'in_flight')`,
		convo, dids, ids)
	if err != nil {
		return fmt.Errorf("supersede Welcomes: %w", err)
	}
	return nil
}

// Invited returns those of dids that have ever been sent a Welcome to convo.
func Invited(ctx context.Context, tx pgx.Tx, convo uuid.UUID, dids []syntax.DID) (invited []syntax.DID, err error) {
	err = tx.QueryRow(ctx, `
		SELECT coalesce(array_agg(DISTINCT recipient_did), '{}') FROM welcomes WHERE convo_id = $1 AND recipient_did = ANY($2)`,
		convo, dids).Scan(&invited)
	if err != nil {
		return nil, fmt.Errorf("read who was invited: %w", err)
	}
	return invited, nil
}
