package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
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
	Role        Kind = 11 // for a convo: a member becomes an admin, or stops being one
	Metadata    Kind = 12 // for a convo: its name or description has changed; the event has neither
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

// Changes of a Role.
const (
	Promoted = "promoted"
	Demoted  = "demoted"
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
	// the kind of signal; for a Role Promoted or Demoted; for a Dispute Forked, Disputed or
	// DisputeEnded; for an Arrival "consumed" or "failed"; for an Invitation "withdrawn" or "ended",
	// or "" if the invitation is new.
	Change string `json:"change,omitzero"`
	// By is a person: for a Membership, a Reset, a Role or Metadata the person who made the change, or
	// "" if the server or an operator has made an admin; for a Dispute the committer whom it names,
	// for an Arrival the recipient of the Welcome, for an Invitation the inviter.
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

// Event is an event that a transaction causes.
type Event struct {
	Kind   Kind
	DID    syntax.DID // the person whom the event concerns; "" if it is not one person
	Size   int        // bytes of the log entry's body; 0 if there is none
	Detail Detail     // the zero Detail is not stored
}

// Queue adds to a batch of its transaction the insertion of events, in their order. They concern
// the convo, which the transaction has locked, or no convo if it is uuid.Nil. An event of a convo
// gets the seq of the convo's newest log entry at that time, so a log entry comes before its event.
//
// QueueMessages inserts the events of new messages. Packages welcome (a confirmation) and
// keypackages (a signal) insert events in SQL of their own: only the statement that makes the
// change knows whether there is an event, and another round trip would delay its transaction.
func Queue(batch *pgx.Batch, convo uuid.UUID, all ...Event) {
	n := len(all)
	if n == 0 {
		return
	}
	kinds, sizes := make(pgpool.Array[pgpool.Int], n), make(pgpool.Array[pgpool.Int], n)
	dids, details := make(pgpool.Array[pgpool.Text], n), make([]*Detail, n)
	for i := range all {
		e := &all[i]
		kinds[i], dids[i], sizes[i] = pgpool.Int(e.Kind), pgpool.Text(e.DID), pgpool.Int(e.Size)
		if e.Detail != (Detail{}) {
			details[i] = &e.Detail
		}
	}
	batch.Queue(`
		INSERT INTO outbox (kind, convo_id, seq, did, size, detail, created_at)
		SELECT e.kind, c.id, c.last_seq, nullif(e.did, ''), e.size, e.detail, clock_timestamp()
		FROM unnest($2::smallint[], $3::text[], $4::integer[], $5::jsonb[])
			WITH ORDINALITY AS e (kind, did, size, detail, ord)
		LEFT JOIN convos c ON c.id = $1
		ORDER BY e.ord`, convo, kinds, dids, sizes, details)
}

// Insert is Queue for a transaction that has nothing else to send.
func Insert(ctx context.Context, tx pgx.Tx, convo uuid.UUID, all ...Event) error {
	batch := &pgx.Batch{}
	Queue(batch, convo, all...)
	return tx.SendBatch(ctx, batch).Close()
}

// MessagesTogether inserts one row for all messages of a transaction.
const MessagesTogether = `
	INSERT INTO outbox (kind, convo_ids, seqs, sizes, created_at) VALUES ($1, $2::uuid[], $3::bigint[], $4::integer[], $5)`

// MessagesEach inserts a row for each log entry. It is used for a single message. It is also used if
// one of the entries is a proposal, because a proposal must keep its place.
const MessagesEach = `
	INSERT INTO outbox (kind, convo_id, seq, size, created_at)
	SELECT e.*, $5 FROM unnest($1::smallint[], $2::uuid[], $3::bigint[], $4::integer[]) AS e`

// QueueMessages adds to the batch of their transaction the events of new messages and proposals of
// any convos. The slices are parallel: kind, convo and seq of each log entry, and the bytes of its
// body. The statement is MessagesTogether or MessagesEach.
func QueueMessages(batch *pgx.Batch, kinds pgpool.Array[pgpool.Int], convos pgpool.Array[pgpool.UUID],
	seqs, sizes pgpool.Array[pgpool.Int], at time.Time) {
	isProposal := func(k pgpool.Int) bool { return Kind(k) != Application }
	if len(kinds) > 1 && !slices.ContainsFunc(kinds, isProposal) {
		batch.Queue(MessagesTogether, int16(Application), convos, seqs, sizes, at)
	} else {
		batch.Queue(MessagesEach, kinds, convos, seqs, sizes, at)
	}
}
