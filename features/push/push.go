// Package push calls devices that have something to fetch, over APNs, over Web Push or by a signed call
// of a webhook. A call carries no content. docs/PUSH.md is for people whose servers receive calls.
//
// The transaction of a message inserts one row for its convo into push_convos. The transaction of a
// Welcome makes one job for each device that the Welcome is for (outbox.QueueWelcomeCalls). After the commit,
// workers make jobs from the rows (FanOut). Then they make the calls, each under a lease and a
// fence of idem.Store.Run:
//
//	pending ──▶ sending ──▶ done      delivered, device unregistered, or superseded by the next job
//	   │        ↺    └────▶ dead      refused, or tried too often
//	   └──────────────────▶ done      deferred, and the device was connected
//
// A device has at most one pending job. The job stands for all messages and Welcomes that are
// committed until a worker takes it. The worker commits the change to sending before the call, so a
// message that is committed during the call makes a new job. If a transaction finds that a row or a
// pending job exists already, it locks this row or job until its own commit. So no call is made
// before the commits that it stands for.
//
// The job of a connected device is deferred: see outbox/calls.go. A webhook is called only after it has
// answered a challenge: see challenge.go. queue.go and package outgoing decide which due jobs are called,
// and when, so that receivers that hang delay nobody else.
package push

import (
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/features/outgoing"
)

// Reasons for a call.
const (
	ReasonMessage = "message"
	ReasonWelcome = "welcome"
)

const (
	webhookTimeout = 3 * time.Second  // for one call of a URL, in total
	apnsTimeout    = 10 * time.Second // for one call of Apple's service, in total
	maxAttempts    = 10

	// databaseTimeout bounds the database work of one round, and the database work before and after
	// a call. A connection that hangs delays others no longer than this.
	databaseTimeout = 15 * time.Second

	// takeOverAfterLease is how long after the end of its lease another worker takes a job.
	takeOverAfterLease = time.Second

	firstDelay = time.Second        // the longest delay before attempt 2; it triples with each attempt
	lastDelay  = time.Hour          // the longest delay of all
	keepEnded  = 7 * 24 * time.Hour // how long an ended job is kept
	sweepBatch = 500                // rows of one transaction

	// roundBatches is how many transactions of a kind one round makes. The next round continues, so
	// that no kind of work keeps the others waiting.
	roundBatches = 8
)

// Job is one call to a device.
type Job struct {
	ID       uuid.UUID
	DID      syntax.DID
	DeviceID string
	Reason   string

	attempt   int
	version   int64
	lastError string
	call      outgoing.Call // as what its call counts
	place     outgoing.Place
	wait      time.Duration // time until it is due again, if its host is not called
}

// key is the idempotency key of the call. It is the same in all attempts.
func (j Job) key() string { return "mlsd-" + j.ID.String() }
