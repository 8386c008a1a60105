package welcome

import (
	"context"
	_ "embed"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/mls"
	"mlsd/outbox"
)

// Recipient is a device that a Welcome names by its KeyPackageRef.
type Recipient struct {
	DID      syntax.DID
	DeviceID string
	Ref      mls.KeyPackageRef
	Request  bool // the DID has not accepted the convo, so the device gets no push
}

// Bounds of how many ended Welcomes of one person in one convo are kept. Fetches, confirmations and
// commits read all of them.
const (
	keepEnded = 500  // the newest ones: 10 for each of 50 devices
	trimEnded = 1000 // most Welcomes of a person that one Add deletes; it adds at most 500, one for each KeyPackage
)

// trim deletes ended Welcomes of people who have more than keepEnded of them.
//
//go:embed trim.sql
var trim string

// Add makes the Welcome that leads into epoch available to each recipient, inside the transaction
// of its commit. It supersedes older Welcomes of the same devices. Of the ended Welcomes of each
// person, it keeps the newest keepEnded. The caller holds the convo's lock.
func Add(ctx context.Context, tx pgx.Tx, convo uuid.UUID, epoch int64, body []byte, to []Recipient) error {
	n := len(to)
	ids, dids, devices, refs := make([]uuid.UUID, n), make([]syntax.DID, n), make([]string, n), make([][]byte, n)
	events := make([]outbox.Event, n)
	var pushed, pushedDevices = make([]syntax.DID, 0, n), make([]string, 0, n)
	for i, r := range to {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("mint a Welcome id: %w", err)
		}
		ids[i], dids[i], devices[i], refs[i] = id, r.DID, r.DeviceID, r.Ref
		events[i] = outbox.Event{Kind: outbox.Welcome, DID: r.DID, Detail: outbox.Detail{
			Epoch: epoch, DeviceID: r.DeviceID, KeyPackageRef: r.Ref.String(), Request: r.Request,
		}}
		if !r.Request {
			pushed, pushedDevices = append(pushed, r.DID), append(pushedDevices, r.DeviceID)
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO welcome_bodies (convo_id, epoch, body, created_at) VALUES ($1, $2, $3, clock_timestamp())`,
		convo, epoch, body)
	batch.Queue(supersede, convo, dids, devices)
	people := slices.Clone(dids)
	slices.Sort(people)
	batch.Queue(trim, convo, slices.Compact(people), keepEnded, trimEnded)
	batch.Queue(`
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, created_at)
		SELECT $1, r.id, r.did, r.device_id, r.ref, $2, clock_timestamp()
		FROM unnest($3::uuid[], $4::text[], $5::text[], $6::bytea[]) AS r (id, did, device_id, ref)`,
		convo, epoch, ids, dids, devices, refs)
	outbox.Queue(batch, convo, events...)
	outbox.QueueWelcomeCalls(batch, pushed, pushedDevices)
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "add the Welcome")
}

// Every statement that locks several Welcomes of a person in a convo locks them in the order of
// their ids. Otherwise two transactions could each wait for a Welcome that the other has locked. A
// transaction that locks Welcomes of several people holds the convo's lock.

// supersede ends the Welcomes that are on their way to devices in the convo $1. $2 and $3 are the
// devices' DIDs and ids, in parallel. An empty id means every device of the DID.
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

// Supersede ends the Welcomes that are on their way to devices, because they lead into an epoch to
// which the devices no longer belong. It ignores KeyPackageRef.
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

// lock locks the Welcomes of the people $2 in the convo $1 that a commit or a device can still
// change.
const lock = `
	SELECT FROM welcomes
	WHERE convo_id = $1 AND recipient_did = ANY($2) AND (state IN ('available', 'in_flight') OR silent)
	ORDER BY id FOR UPDATE`

// Lock locks all Welcomes of the people that have not ended with a confirmation, in the order of
// ids. It waits for the locks. Afterwards no device can confirm one of these Welcomes until tx
// ends.
func Lock(ctx context.Context, tx pgx.Tx, convo uuid.UUID, people []syntax.DID) error {
	_, err := tx.Exec(ctx, lock, convo, people)
	return errs.Wrap(err, "lock Welcomes")
}

// QueueLock adds Lock to a batch. A transaction that supersedes Welcomes with several statements
// first locks the Welcomes of all the people, before it locks any KeyPackage.
func QueueLock(batch *pgx.Batch, convo uuid.UUID, people []syntax.DID) {
	batch.Queue(lock, convo, people)
}
