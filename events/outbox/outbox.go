// Package outbox defines the rows of the table outbox, and what the events made of them say. A
// transaction inserts one row for each event that it causes. So there is no change without its
// event, and no event without its change. Package events moves the rows into the stream.
package outbox

import (
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Kind is the kind of an event. The numbers are stored.
type Kind int16

// The kinds of events. Those of log entries are the MLS content types (RFC 9420 §6).
const (
	Application Kind = 1
	Proposal    Kind = 2
	Commit      Kind = 3
	Membership  Kind = 4
	Welcome     Kind = 5
	KeyPackages Kind = 6
	Dispute     Kind = 7  // of a convo: a fork, or the begin or end of a dispute
	Arrival     Kind = 8  // for an inviter: what has become of a Welcome that it has sent
	Reset       Kind = 9  // an entry of a convo's log that is no MLS message: it was closed, or opened, by a reset
	Invitation  Kind = 10 // for a person: it was invited to a convo of another service
)

// LogEntry reports whether an event of this kind carries an entry of a convo's log. A Reset is about
// an entry too, and says all of it in its detail.
func (k Kind) LogEntry() bool { return k >= Application && k <= Commit }

// Changes of a membership.
const (
	Joined  = "joined"
	Left    = "left"
	Removed = "removed"
)

// Changes of a Dispute.
const (
	Forked       = "forked"
	Disputed     = "disputed"
	DisputeEnded = "ended"
)

// Detail is the part of an event that has no column of its own. The kind decides which fields are
// set.
type Detail struct {
	// Change is Joined, Left or Removed for a Membership; the kind of signal for KeyPackages;
	// Forked, Disputed or DisputeEnded for a Dispute; "consumed" or "failed" for an Arrival; and for an
	// Invitation "withdrawn" or "ended", or "" if it is new.
	Change string `json:"change,omitzero"`
	// By is the person who changed a Membership or made a Reset, the committer whom a Dispute names, the
	// recipient of the Welcome of an Arrival, or the inviter of an Invitation.
	By syntax.DID `json:"by,omitzero"`
	// Service is, of an Invitation, the service that has the convo, and ConvoID the convo there.
	Service syntax.DID `json:"service,omitzero"`
	ConvoID string     `json:"convoId,omitzero"`
	// Epoch is the convo's epoch after a change of Membership or a closing Commit. Of a Welcome, an
	// Invitation and an Arrival it is the epoch that the Welcome leads into. Of a Dispute it is the
	// epoch that is forked or disputed.
	Epoch int64 `json:"epoch"`
	// CommitNeeded says that a member who left still has a leaf.
	CommitNeeded bool `json:"commitNeeded,omitzero"`
	// Request says of a Joined member, or of a Welcome's recipient, that its membership was a request
	// then. Only that person may learn it.
	Request bool `json:"request,omitzero"`
	// SuccessorGroupID is, for a Commit or a Reset that closes its convo, the group_id of the group that
	// replaces it, in hexadecimal.
	SuccessorGroupID string `json:"successorGroupId,omitzero"`
	// SuccessorID is, for the Reset that closes a convo, the convo that goes on. PredecessorID is, for
	// the Reset that opens it, the one that was closed. Reason is why, of both.
	SuccessorID   uuid.UUID `json:"successorConvoId,omitzero"`
	PredecessorID uuid.UUID `json:"predecessorConvoId,omitzero"`
	Reason        string    `json:"reason,omitzero"`
	// DeviceID is the device of a Welcome or an Invitation, and the device of KeyPackages.
	DeviceID string `json:"deviceId,omitzero"`
	// KeyPackageRef is that of a Welcome or an Invitation, in hexadecimal.
	KeyPackageRef string `json:"keyPackageRef,omitzero"`
	// CipherSuite and Available are of KeyPackages. Available counts the one-time ones left.
	CipherSuite int32 `json:"cipherSuite,omitzero"`
	Available   int64 `json:"available,omitzero"`
}

// QueueWelcomes adds to the batch of a Welcome's transaction an event for each device that the
// Welcome is for. The slices are parallel.
func QueueWelcomes(batch *pgx.Batch, convo uuid.UUID, epoch int64, dids []syntax.DID, devices []string, refs [][]byte,
	requests []bool) {
	batch.Queue(`
		INSERT INTO outbox (kind, convo_id, did, detail, created_at)
		SELECT $1, $2, did, jsonb_build_object('epoch', $3::bigint, 'deviceId', device_id, 'keyPackageRef', encode(ref,
			'hex'),
				'request', request),
			clock_timestamp()
		FROM unnest($4::text[], $5::text[], $6::bytea[], $7::boolean[]) AS r (did, device_id, ref, request)`,
		int16(Welcome), convo, epoch, dids, devices, refs, requests)
}

// QueueInvitation adds to the batch of an invitation's transaction the event for the invited person. It
// names no convo of this service.
func QueueInvitation(batch *pgx.Batch, did syntax.DID, d Detail) {
	batch.Queue(`INSERT INTO outbox (kind, did, detail, created_at) VALUES ($1, $2, $3, clock_timestamp())`,
		int16(Invitation), did, d)
}
