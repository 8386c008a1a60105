package events

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
	"weak"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events/signals"
	"mlsd/internal/limit"
	"mlsd/internal/standby"
	"mlsd/internal/tracing"
	"mlsd/internal/worker"
)

const (
	tailPoll    = 2 * time.Second       // how often the hub reads without a wake-up
	tailTimeout = 10 * time.Second      // time limit of one read
	tailRest    = 50 * time.Millisecond // longest pause after a read
	loadBytes   = 8 << 20               // bytes of log entries that the hub loads in one round
	bufferBytes = 1 << 20               // bytes of a subscription's buffer; its first event can be larger
	checkEvery  = tailPoll / 2          // how often the hub checks which database it reads
	// At the same time, one subscription for every catchUpShare connections of the pool can read
	// the table. The other connections are for senders.
	catchUpShare = 4

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
	registry
	cfg     HubConfig
	wake    worker.Trigger
	grown   atomic.Int64    // the newest place passed to Grown since Run last began to read
	asked   atomic.Bool     // Wake was called, so Run must read, whatever grown is
	started chan struct{}   // closed once head is known
	checked time.Time       // when checkServer last ran; owned by Run
	ahead   ahead           // cursors of clients that are ahead of the stream
	reading chan struct{}   // has a slot for each catch-up that reads the table
	closing context.Context // ends when Close is called
	close   context.CancelFunc
}

// NewHub returns a hub.
func NewHub(c HubConfig) *Hub {
	c.Reads = cmp.Or(c.Reads, standby.New(standby.Config{DB: c.DB}))
	c.Buffer, c.Large = cmp.Or(c.Buffer, bufferBytes), cmp.Or(c.Large, largeBytes)
	c.Patience = cmp.Or(c.Patience, 30*time.Second)
	h := &Hub{
		registry: registry{
			size: c.Buffer, now: time.Now, metrics: c.Metrics, presence: c.Presence,
			large: &limit.Queue{Size: c.Large, Share: max(c.Large/largeShare, minShare)},
			all:   map[*buffer]struct{}{}, byDID: map[syntax.DID][]*buffer{}, shares: map[syntax.DID]*share{},
			byConvo: map[uuid.UUID]map[*buffer]struct{}{}, shared: map[int64]weak.Pointer[Event]{},
		},
		cfg: c, wake: worker.NewTrigger(), started: make(chan struct{}),
		reading: make(chan struct{}, max(1, c.DB.Config().MaxConns/catchUpShare)),
	}
	h.ahead = ahead{log: c.Log, now: func() time.Time { return h.now() }}
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

// Wake makes Run read the stream now. It does not block. Any goroutine can call it.
func (h *Hub) Wake() {
	h.asked.Store(true)
	h.wake.Send()
}

// Grown says that the stream has events up to a place, or after it. If there are subscriptions, Run
// reads the events that it has not read yet. Grown does not block. Any goroutine can call it.
func (h *Hub) Grown(place int64) {
	for {
		known := h.grown.Load()
		if place <= known {
			return
		}
		if h.grown.CompareAndSwap(known, place) {
			h.wake.Send()
			return
		}
	}
}

// Run reads the stream and hands its events to the subscriptions until ctx ends.
//
// Run is not a worker.Every, because it does not wait for the next tick after a full batch or after
// an error.
func (h *Hub) Run(ctx context.Context) {
	tick := time.NewTicker(tailPoll)
	defer tick.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		more, err := h.round(ctx)
		if err != nil && ctx.Err() == nil {
			h.cfg.Log.WarnContext(ctx, "the end of the stream could not be read", "error", err)
			worker.Pause(ctx, tailPoll/4)
			continue
		}
		if more {
			continue
		}
		worker.Pause(ctx, min(time.Since(began), tailRest)) // every node reads a busy database less often
		h.wait(ctx, tick.C)
	}
}

// End ends the subscriptions of a person with the error why.
func (h *Hub) End(did syntax.DID, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.byDID[did] {
		b.stop(why)
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
	for _, b := range h.byDID[r.DID] {
		if b.named != r.DeviceID {
			continue
		}
		b.stop(ErrClosing)
	}
}

// Close ends all subscriptions. New ones are refused with ErrClosing.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = ErrClosing
	for b := range h.all {
		b.stop(ErrClosing)
	}
	h.close() // last: who stops waiting now finds the reason in its subscription
}

// Live implements signals.Hub.
func (h *Hub) Live(convo uuid.UUID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byConvo[convo])
}

// LiveDIDs implements signals.Hub.
func (h *Hub) LiveDIDs(convo uuid.UUID) (dids []syntax.DID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	here := h.byConvo[convo]
	seen := make(map[syntax.DID]struct{}, len(here))
	for b := range here {
		if _, twice := seen[b.did]; !twice {
			seen[b.did] = struct{}{}
			dids = append(dids, b.did)
		}
	}
	return dids
}

// OfferSignal implements signals.Hub. Subscriptions that get the same signal share its event.
func (h *Hub) OfferSignal(convo uuid.UUID, of func(syntax.DID) *signals.Signal) (offered, behind int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := map[*signals.Signal]*Event{}
	for b := range h.byConvo[convo] {
		signal := of(b.did)
		if signal == nil {
			continue
		}
		e := events[signal]
		if e == nil {
			e = &Event{ConvoID: signal.ConvoID, Size: len(signal.Payload), Signal: signal}
			events[signal] = e
		}
		if b.offerSignal(e, h.size) {
			offered++
		} else {
			behind++
		}
	}
	return offered, behind
}

// wait waits until the stream must be read. A hub without subscriptions reads only at ticks,
// because each read costs the database about as much as a step of the sequencer, on every node.
func (h *Hub) wait(ctx context.Context, tick <-chan time.Time) {
	for !h.due() {
		select {
		case <-h.wake:
		case <-tick:
			return
		case <-ctx.Done():
			return
		}
	}
}

// due reports whether the hub must read now.
func (h *Hub) due() bool {
	if h.asked.Swap(false) {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.all) > 0 && h.grown.Load() > h.head
}

// round reads new events and hands them out. more says that there may be more events already.
func (h *Hub) round(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	select {
	case <-h.started:
	default:
		if err := h.start(ctx); err != nil {
			return false, err
		}
	}
	if err := h.checkServer(ctx); err != nil {
		return false, err
	}
	h.grown.Store(0)
	batch, continues, err := h.read(ctx)
	if err != nil {
		return false, err
	}
	if !continues {
		return true, h.startAgain(ctx)
	}
	if len(batch) == 0 {
		return false, nil
	}
	if batch[0].StreamSeq != h.head+1 { // partitions were dropped while this node did not run
		s, err := readStream(ctx, h.cfg.DB)
		if err != nil {
			return false, err
		}
		return true, h.jump(ctx, s)
	}
	for part := range slices.Chunk(batch, tailLimit) {
		spans := h.trace(ctx, part)
		h.load(ctx, part)
		h.publish(part)
		for _, s := range spans {
			s.End()
		}
		h.cfg.Metrics.Published(len(part), h.lag(part[len(part)-1]))
	}
	return len(batch) >= tailLimit, nil
}

// start begins to read at the end of the stream.
func (h *Hub) start(ctx context.Context) error {
	var s stream
	err := h.cfg.DB.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
		if s, err = readStream(ctx, conn); err != nil {
			return err
		}
		if _, err = checkServer(ctx, conn.Conn(), s.of, h.cfg.OnDump); err != nil { // before the first cursor is read
			return err
		}
		s, err = readStream(ctx, conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("find the end of the stream: %w", err)
	}
	at, err := remember(ctx, h.cfg.DB, s)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tail = at
	close(h.started)
	return nil
}

// checkServer begins a generation if the database did not write the newest one. Every node does
// this, so a new database is noticed even while no node leads.
func (h *Hub) checkServer(ctx context.Context) error {
	if time.Since(h.checked) < checkEvery {
		return nil
	}
	conn, err := h.cfg.DB.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Release()
	all, err := checkServer(ctx, conn.Conn(), h.of, h.cfg.OnDump)
	if err != nil {
		return err
	}
	h.checked = time.Now()
	if all.newest().id == h.of.newest().id { // otherwise read notices the new generation
		h.mu.Lock()
		defer h.mu.Unlock()
		h.of = all
	}
	return nil
}

// read reads the next events. continues says that these events follow the hub's head: the stream
// has no newer generation, and has not gone back.
func (h *Hub) read(ctx context.Context) (batch []*Event, continues bool, err error) {
	batch, now, err := h.tail.next(ctx, h.cfg.DB)
	if err != nil {
		return nil, false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.indexed = now.indexed
	return batch, now.generation == h.of.newest().id && now.head >= h.head, nil
}

// startAgain begins to read the newest generation. If there is no new one, the stream has gone
// back, because an older state of the database has replaced the newest state. Then startAgain
// begins a generation.
func (h *Hub) startAgain(ctx context.Context) error {
	s, err := readStream(ctx, h.cfg.DB)
	if err != nil {
		return err
	}
	if newest := s.of.newest(); newest.id == h.of.newest().id {
		if err := beginGeneration(ctx, h.cfg.DB, newest.id, newest.by, causeWentBack, nil); err != nil {
			return err
		}
		if s, err = readStream(ctx, h.cfg.DB); err != nil {
			return err
		}
	}
	return h.jump(ctx, s)
}

// jump continues at another place of the stream. The present subscriptions have missed events, or
// have got events that no longer exist, so jump ends them. Their clients connect again, and learn
// then whether their cursors are still good.
func (h *Hub) jump(ctx context.Context, to stream) error {
	at, err := remember(ctx, h.cfg.DB, to)
	if err != nil {
		return err
	}
	level, says := slog.LevelInfo, "the stream goes on in another generation, so its readers connect again"
	lost := to.of.lostAfter(h.of.newest(), h.head)
	if lost > 0 {
		level, says = slog.LevelError, "the database has lost events that this node has handed out"
	}
	h.cfg.Log.Log(ctx, level, says, "lost", lost, "generation", h.of.newest().id, "after", h.head,
		"new_generation", to.of.newest().id, "from", at.head+1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for b := range h.all {
		b.stop(ErrClosing)
	}
	h.tail = at
	clear(h.shared)
	return nil
}

// load loads the log entries of events that a live subscription will get, up to loadBytes. The
// readers load the entries that load leaves out.
func (h *Hub) load(ctx context.Context, batch []*Event) {
	var wanted []*Event
	left := loadBytes
	h.mu.Lock()
	for _, e := range batch {
		if e.Kind.LogEntry() && len(h.byConvo[e.ConvoID]) > 0 && e.Size <= left {
			wanted = append(wanted, e)
			left -= e.Size
		}
	}
	h.mu.Unlock()
	if err := loadEntries(ctx, h.cfg.DB, wanted); err != nil {
		h.cfg.Log.WarnContext(ctx, "log entries could not be read ahead", "error", err)
	}
}

// lag returns the age of an event that was handed out. It is 0 if nobody subscribes, because the
// hub does not read events at once without subscribers.
func (h *Hub) lag(e *Event) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.all) == 0 {
		return 0
	}
	return time.Since(e.At)
}

// trace begins the spans of events whose writers are traced.
func (h *Hub) trace(ctx context.Context, batch []*Event) (spans []tracing.Span) {
	for _, e := range batch {
		if !e.Kind.LogEntry() {
			continue
		}
		_, span := tracing.Follow(ctx, "event", h.cfg.Tracer.WriterOf(e.ConvoID, e.Seq))
		if !span.Traced() {
			continue
		}
		h.mu.Lock()
		span.Number("event.subscriptions", len(h.byConvo[e.ConvoID]))
		h.mu.Unlock()
		spans = append(spans, span)
	}
	return spans
}
