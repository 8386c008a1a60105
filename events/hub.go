package events

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"mlsd/internal/standby"
	"mlsd/internal/tracing"
	"mlsd/internal/worker"
)

const (
	tailLimit   = 1000                  // rows of one read; also events that are handed out at a time
	tailPoll    = 2 * time.Second       // how often the hub reads without a wake-up
	tailTimeout = 10 * time.Second      // time limit of one read
	tailRest    = 50 * time.Millisecond // longest pause after a read
	loadBytes   = 8 << 20               // bytes of log entries that the hub loads in one round
	maxOfDID    = 16                    // subscriptions of one DID on this node
	maxOfNode   = 50_000                // subscriptions on this node
	bufferBytes = 1 << 20               // bytes of a subscription's buffer; its first event can be larger
	checkEvery  = tailPoll / 2          // how often the hub checks which database it reads
	// At the same time, one subscription for every catchUpShare connections of the pool can read
	// the table. The other connections are for senders.
	catchUpShare = 4

	largeEvent = 64 << 10  // bytes; subscriptions share larger events in memory
	largeBytes = 512 << 20 // bytes of large events in use, counted once for each subscription
	largeShare = 8         // one DID can use 1/largeShare of them
	minShare   = 24 << 20  // lower bound of a DID's share, in bytes: two of the largest events
)

// HubConfig configures a Hub.
type HubConfig struct {
	DB       *pgxpool.Pool
	Reads    *standby.Reads // chooses where subscriptions that catch up read; nil means DB
	Log      *slog.Logger
	Metrics  Metrics
	Presence *Presence
	Tracer   *tracing.Tracer // nil means none
	OnDump   Hook            // nil means none
	Buffer   int             // bytes of one subscription's buffer; 0 means 1 MiB
	// Large is how many bytes of large log entries can be in use, counted once for each
	// subscription. 0 means 512 MiB.
	Large int64
	// Patience is how long a subscription may take to catch up after its buffer was full. 0 means
	// 30 s.
	Patience time.Duration
}

// Hub reads the end of the stream once for all subscriptions of this node, and hands each event to
// the subscriptions that it concerns.
type Hub struct {
	cfg     HubConfig
	now     func() time.Time // clock for how long a reader is behind; changed by tests
	wake    worker.Signal
	grown   atomic.Int64        // the newest place passed to Grown since Run last began to read
	asked   atomic.Bool         // Wake was called, so Run must read, whatever grown is
	started chan struct{}       // closed once head is known
	checked time.Time           // when checkServer last ran; owned by Run
	reading chan struct{}       // has a slot for each catch-up that reads the table
	large   *semaphore.Weighted // bytes of large log entries in use
	ofDID   int64               // how many bytes of large one DID can use
	closing context.Context     // ends when Close is called
	close   context.CancelFunc

	mu      sync.Mutex
	tail    // changed only by Run
	all     map[*Subscription]struct{}
	byDID   map[syntax.DID][]*Subscription           // all subscriptions
	shares  map[syntax.DID]*share                    // by the DIDs in byDID
	byConvo map[uuid.UUID]map[*Subscription]struct{} // live subscriptions whose DID is a member
	shared  map[int64]weak.Pointer[Event]            // large events in use, by stream_seq
	closed  error                                    // nil until Close
}

// share is what the subscriptions of one DID can use together.
type share struct {
	large   *semaphore.Weighted // bytes of the hub's large, up to ofDID
	reading chan struct{}       // has one slot, so one subscription reads the table at a time
}

// NewHub returns a hub.
func NewHub(c HubConfig) *Hub {
	c.Reads = cmp.Or(c.Reads, standby.New(standby.Config{DB: c.DB}))
	c.Buffer, c.Large = cmp.Or(c.Buffer, bufferBytes), cmp.Or(c.Large, largeBytes)
	c.Patience = cmp.Or(c.Patience, 30*time.Second)
	h := &Hub{
		cfg: c, now: time.Now, wake: worker.NewSignal(), started: make(chan struct{}),
		all: map[*Subscription]struct{}{}, byDID: map[syntax.DID][]*Subscription{},
		byConvo: map[uuid.UUID]map[*Subscription]struct{}{},
		reading: make(chan struct{}, max(1, c.DB.Config().MaxConns/catchUpShare)), shared: map[int64]weak.Pointer[Event]{},
		shares: map[syntax.DID]*share{},
		large:  semaphore.NewWeighted(c.Large), ofDID: max(c.Large/largeShare, minShare),
	}
	h.closing, h.close = context.WithCancel(context.Background())
	c.Presence.head = h.Head
	return h
}

// Head returns the place of the newest event that has been handed out.
func (h *Hub) Head() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.head
}

// End ends the subscriptions of a person with the error why.
func (h *Hub) End(did syntax.DID, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.byDID[did] {
		s.mu.Lock()
		s.fail(why)
		s.mu.Unlock()
	}
}

// endDevice ends the subscriptions of this node that a revocation names.
func (h *Hub) endDevice(payload string) {
	var r revocation
	if err := json.Unmarshal([]byte(payload), &r); err != nil {
		h.cfg.Log.Error("a revocation cannot be read", "error", err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.byDID[r.DID] {
		if s.named != r.DeviceID {
			continue
		}
		s.mu.Lock()
		s.fail(ErrClosing)
		s.mu.Unlock()
	}
}

// Close ends all subscriptions. New ones are refused with ErrClosing.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = ErrClosing
	for s := range h.all {
		s.mu.Lock()
		s.fail(ErrClosing)
		s.mu.Unlock()
	}
	h.close() // last: who stops waiting now finds the reason in its subscription
}
