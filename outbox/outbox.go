package outbox

import (
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Kind is the kind of an event. The numbers are stored.
type Kind int16

// The kinds of events. The kinds of log entries are the MLS content types (RFC 9420 §6).
const (
	Application Kind = 1
	Proposal    Kind = 2
	Commit      Kind = 3
	Membership  Kind = 4
	Welcome     Kind = 5
	KeyPackages Kind = 6
	Dispute     Kind = 7  // for a convo: a fork, or the begin or end of a dispute
	Arrival     Kind = 8  // for an inviter: what happened to a Welcome that it sent
	Reset       Kind = 9  // a log entry that is no MLS message: a reset closed or opened the convo
	Invitation  Kind = 10 // for a person: an invitation to a convo of another service
)

// LogEntry reports whether an event of this kind carries an entry of a convo's log. A Reset is
// about an entry too, but its detail says everything that the entry says.
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
	// Change depends on the kind. For a Membership it is Joined, Left or Removed; for KeyPackages
	// the kind of signal; for a Dispute Forked, Disputed or DisputeEnded; for an Arrival "consumed"
	// or "failed"; for an Invitation "withdrawn" or "ended", or "" if the invitation is new.
	Change string `json:"change,omitzero"`
	// By is a person: for a Membership or a Reset the person who made the change, for a Dispute the
	// committer whom it names, for an Arrival the recipient of the Welcome, for an Invitation the
	// inviter.
	By syntax.DID `json:"by,omitzero"`
	// Service is, for an Invitation, the service that has the convo. ConvoID is the convo's id at
	// that service.
	Service syntax.DID `json:"service,omitzero"`
	ConvoID string     `json:"convoId,omitzero"`
	// Epoch is, for a Membership or a closing Commit, the convo's epoch after the change. For a
	// Welcome, an Invitation and an Arrival, it is the epoch that the Welcome leads into. For a
	// Dispute, it is the forked or disputed epoch.
	Epoch int64 `json:"epoch"`
	// CommitNeeded says that the tree still has a leaf of a member who left.
	CommitNeeded bool `json:"commitNeeded,omitzero"`
	// Request says that the membership of a Joined member, or of a Welcome's recipient, was a
	// request at that time. Only that person may learn this.
	Request bool `json:"request,omitzero"`
	// SuccessorGroupID is, for a Commit or a Reset that closes its convo, the group_id of the group
	// that replaces the convo's group, in hexadecimal.
	SuccessorGroupID string `json:"successorGroupId,omitzero"`
	// SuccessorID is, for the Reset that closes a convo, the convo that continues it. PredecessorID
	// is, for the Reset that opens a convo, the convo that was closed. Reason is, for both, why.
	SuccessorID   uuid.UUID `json:"successorConvoId,omitzero"`
	PredecessorID uuid.UUID `json:"predecessorConvoId,omitzero"`
	Reason        string    `json:"reason,omitzero"`
	// DeviceID is the device of a Welcome or an Invitation, and the device of KeyPackages.
	DeviceID string `json:"deviceId,omitzero"`
	// KeyPackageRef is the KeyPackageRef of a Welcome or an Invitation, in hexadecimal.
	KeyPackageRef string `json:"keyPackageRef,omitzero"`
	// CipherSuite and Available are set for KeyPackages. Available counts the one-time KeyPackages
	// left.
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

// QueueInvitation adds to the batch of an invitation's transaction the event for the invited
// person. The event names no convo of this service.
func QueueInvitation(batch *pgx.Batch, did syntax.DID, d Detail) {
	batch.Queue(`INSERT INTO outbox (kind, did, detail, created_at) VALUES ($1, $2, $3, clock_timestamp())`,
		int16(Invitation), did, d)
}
