// Package outbox is where writers leave word of what they do, for those who listen: one row for each event, in the transaction of
// the write itself. Nothing can happen without its event, and no event can tell of what did not happen. Package events takes it
// from there. The functions here are parts of other packages' transactions; they own the inserts into the table outbox.
package outbox

import (
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Kind says what an event tells. The numbers are stored.
type Kind int16

// The kinds of events. Those of log entries are the MLS content types (RFC 9420 §6).
const (
	Application Kind = 1
	Proposal    Kind = 2
	Commit      Kind = 3
	Membership  Kind = 4
	Welcome     Kind = 5
	KeyPackages Kind = 6
)

// LogEntry reports whether events of this kind tell of an entry of a convo's log.
func (k Kind) LogEntry() bool { return k >= Application && k <= Commit }

// What becomes of a membership.
const (
	Joined  = "joined"
	Left    = "left"
	Removed = "removed"
)

// Detail is what there is to tell of an event besides the columns that all have. Which fields are set is a matter of its kind.
type Detail struct {
	Change        string     `json:"change,omitzero"`        // Membership: Joined, Left or Removed; KeyPackages: the signal's kind
	By            syntax.DID `json:"by,omitzero"`            // Membership
	Epoch         int64      `json:"epoch"`                  // Membership: the convo's after it; Welcome: it leads into
	CommitNeeded  bool       `json:"commitNeeded,omitzero"`  // Membership: the one who left still has a leaf
	DeviceID      string     `json:"deviceId,omitzero"`      // Welcome, KeyPackages
	KeyPackageRef string     `json:"keyPackageRef,omitzero"` // Welcome: hex
	CipherSuite   int32      `json:"cipherSuite,omitzero"`   // KeyPackages
	Available     int64      `json:"available,omitzero"`     // KeyPackages: one-time ones that were left
}

// NoteMessages is the part of the message log's statement that leaves an event for each new entry. It reads noted (convo_id, seq,
// kind, size, created_at), and takes the events in the order of seq.
const NoteMessages = `
	INSERT INTO outbox (kind, convo_id, seq, size, created_at)
	SELECT kind, convo_id, seq, size, created_at FROM noted ORDER BY convo_id, seq`

// NoteMembership is the part of a statement about a roster, under the convo's row lock, that leaves an event for each member whose
// membership changed. It reads changed (convo_id, seq, did, change, by, epoch, commit_needed), and takes them as they come.
const NoteMembership = `
	INSERT INTO outbox (kind, convo_id, seq, did, detail, created_at)
	SELECT 4, convo_id, seq, did, jsonb_build_object('change', change, 'by', by, 'epoch', epoch, 'commitNeeded', commit_needed),
		clock_timestamp()
	FROM changed`

// NoteWelcomes adds to the batch of a Welcome's transaction an event for each device that it is for. The slices run in parallel.
func NoteWelcomes(batch *pgx.Batch, convo uuid.UUID, epoch int64, dids []syntax.DID, devices []string, refs [][]byte) {
	batch.Queue(`
		INSERT INTO outbox (kind, convo_id, did, detail, created_at)
		SELECT $1, $2, did, jsonb_build_object('epoch', $3::bigint, 'deviceId', device_id, 'keyPackageRef', encode(ref, 'hex')),
			clock_timestamp()
		FROM unnest($4::text[], $5::text[], $6::bytea[]) AS r (did, device_id, ref)`,
		int16(Welcome), convo, epoch, dids, devices, refs)
}

// NoteSignals is the part of a statement about KeyPackages that leaves an event for each signal. It reads noted (did, device_id,
// cipher_suite, kind, available).
const NoteSignals = `
	INSERT INTO outbox (kind, did, detail, created_at)
	SELECT 6, did, jsonb_build_object('change', kind, 'deviceId', device_id, 'cipherSuite', cipher_suite, 'available', available),
		clock_timestamp()
	FROM noted`
