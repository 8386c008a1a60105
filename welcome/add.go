package welcome

import (
	"context"
	_ "embed"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/events/outbox"
	"mlsd/internal/errs"
	"mlsd/internal/push"
	"mlsd/mls"
)

// Recipient is a device that a Welcome names by its KeyPackageRef.
type Recipient struct {
	DID      syntax.DID
	DeviceID string
	Ref      mls.KeyPackageRef
	Request  bool // its DID has not accepted the convo: the device gets no push
}

// Bounds of the Welcomes of a person in a convo that have ended. Fetches, confirmations and commits
// read all of them.
const (
	keepEnded = 500  // the newest: 10 of each of 50 devices
	trimEnded = 1000 // the most that one Add deletes of a person; it adds at most 500, one for each KeyPackage
)

// trim deletes Welcomes of people who have more than keepEnded.
//
//go:embed trim.sql
var trim string

// Add makes the Welcome that leads into epoch available to each recipient, inside the transaction
// of its commit. It supersedes older Welcomes of the same devices, and keeps the newest keepEnded
// that have ended of each person. The caller holds the convo's lock.
func Add(ctx context.Context, tx pgx.Tx, convo uuid.UUID, epoch int64, body []byte, to []Recipient) error {
	n := len(to)
	ids, dids, devices, refs := make([]uuid.UUID, n), make([]syntax.DID, n), make([]string, n), make([][]byte, n)
	requests := make([]bool, n)
	var pushed, pushedDevices = make([]syntax.DID, 0, n), make([]string, 0, n)
	for i, r := range to {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("mint a Welcome id: %w", err)
		}
		ids[i], dids[i], devices[i], refs[i], requests[i] = id, r.DID, r.DeviceID, r.Ref, r.Request
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
	outbox.QueueWelcomes(batch, convo, epoch, dids, devices, refs, requests)
	push.QueueWelcome(batch, pushed, pushedDevices)
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "add the Welcome")
}
