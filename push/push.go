// Package push tells devices that there is something to fetch: over APNs, or by a signed call of a webhook. What they are told says
// nothing of what it is; docs/PUSH.md is for whoever receives it.
//
// A message leaves one row for its convo in its own transaction (NoteMessages), a Welcome one job for each device that it is for
// (QueueWelcome). After the commit, workers turn the rows into jobs and make the calls, each under a lease and a fence of
// idem.Store.Run:
//
//	pending ──▶ sending ──▶ done      delivered, nobody to tell any more, or taken in by the next job of the device
//	   │        ↺    └────▶ dead      refused, or tried too often
//	   └──────────────────▶ done      it was deferred, and its device was connected
//
// A pending job stands for all that happens until it is taken up, so a device has at most one. It leaves pending in a committed
// transaction before the call: what happens during the call makes a new one. Whoever finds a row or a pending job there already
// locks it until its own commit, so that it cannot be sent too early to tell of what was about to be committed.
//
// The job of a device that is connected is deferred; presence.go says for how long.
package push

import (
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// Reasons for a call.
const (
	ReasonMessage = "message"
	ReasonWelcome = "welcome"
)

const (
	inFlight    = 32                        // calls of one node at a time
	callTimeout = 10 * time.Second          // of one call, all in all
	takeOver    = time.Minute + time.Second // after which another takes a job up: a little more than the lease of idem.NSIDPush
	maxAttempts = 10
	firstDelay  = time.Second // before the second attempt, at most; three times as much each time
	lastDelay   = time.Hour
	keepEnded   = 7 * 24 * time.Hour // a job, for whoever asks what became of it
	sweepBatch  = 500                // rows of one transaction
)

// Job is one call to a device.
type Job struct {
	ID       uuid.UUID
	DID      syntax.DID
	DeviceID string
	Reason   string

	attempt int
	version int64
}

// key is what a receiver tells repetitions of the call by.
func (j Job) key() string { return "mlsd-" + j.ID.String() }

// NoteMessages is the part of the message log's statement that leaves word of new messages: one row for each convo and sender, however
// many the members are. It reads pushed (convo_id, sender_did), and does nothing as long as nobody wants to be told. A row
// that is there already is locked, not written, so that it is not worked off before this message is committed.
const NoteMessages = `
	INSERT INTO push_convos (convo_id, sender_did, created_at)
	SELECT DISTINCT convo_id, sender_did, now() FROM pushed WHERE EXISTS (SELECT FROM push_targets)
	ORDER BY convo_id, sender_did
	ON CONFLICT (convo_id, sender_did) DO UPDATE SET sender_did = excluded.sender_did WHERE false`
