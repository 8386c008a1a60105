package events

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"mlsd/internal/standby"
	"mlsd/internal/tracing"
	"mlsd/outbox"
)

const (
	tailLimit   = 1000                  // rows of one read, and events that are handed out at a time
	tailPoll    = time.Second           // how often the hub reads without a wake-up
	tailTimeout = 10 * time.Second      // of one read
	tailRest    = 50 * time.Millisecond // after a read, at most
	loadBytes   = 8 << 20               // of log entries that the hub loads in one round
	maxOfDID    = 16                    // subscriptions of one DID on this node
	maxOfNode   = 50_000                // subscriptions on this node
	bufferBytes = 1 << 20               // of a subscription's buffer; its first event can be larger
	checkEvery  = tailPoll / 2          // how often the hub asks which database is there
	// catchUpShare is the part of the database's connections for requests with which subscriptions
	// read the table: one in so many. Senders need the database too.
	catchUpShare = 4

	largeEvent = 64 << 10  // bytes; subscriptions share larger events in memory
	largeBytes = 512 << 20 // of large events in use, counted once for each subscription
	largeShare = 8         // one DID can use one part in so many of them
	leastShare = 24 << 20  // bytes; or so many: two of the largest events
)

// HubConfig configures a Hub.
type HubConfig struct {
	DB       *pgxpool.Pool
	Reads    *standby.Reads // chooses where subscriptions that catch up read; nil: DB
	Log      *slog.Logger
	Metrics  Metrics
	Presence *Presence
	Tracer   *tracing.Tracer // nil: none
	Buffer   int             // bytes of one subscription's buffer; default: 1 MiB
	// Large is how many bytes of large log entries can be in use, counted once for each
	// subscription. Default: 512 MiB.
	Large int64
	// Patience is how long a subscription whose buffer was full has to catch up. Default: 30 s.
	Patience time.Duration
}

// Hub reads the end of the stream once for all subscriptions of this node, and hands each event to
// the subscriptions that it concerns.
type Hub struct {
	db       *pgxpool.Pool
	reads    *standby.Reads
	log      *slog.Logger
	metrics  Metrics
	presence *Presence
	tracer   *tracing.Tracer
	buffer   int
	patience time.Duration
	wake     chan struct{}
	grown    atomic.Int64        // the newest place that it was told of since it last began to read
	asked    atomic.Bool         // it must read, whatever grown is
	started  chan struct{}       // closed once head is known
	checked  time.Time           // when checkServer last asked; owned by Run
	reading  chan struct{}       // has a place for each catch-up that reads the table
	large    *semaphore.Weighted // bytes of large log entries in use
	ofDID    int64               // how many of them one DID can use
	closing  context.Context     // ends with Close
	close    context.CancelFunc

	mu      sync.Mutex
	tail    // changed by Run alone
	all     map[*Subscription]struct{}
	byDID   map[syntax.DID][]*Subscription           // all subscriptions
	shares  map[syntax.DID]*semaphore.Weighted       // of ofDID each, of the DIDs in byDID
	byConvo map[uuid.UUID]map[*Subscription]struct{} // live ones whose DID is a member
	shared  map[int64]weak.Pointer[Event]            // large events in use, by stream_seq
	closed  error                                    // nil until Close
}

// tail is the end of the stream, as a hub has read it.
type tail struct {
	of      generations // up to the one that is read
	head    int64       // the newest event
	day     time.Time   // its partition
	indexed int64       // convo_events has the messages up to here
	memory  memory      // of the events up to head, at least of those that are not indexed
}

// NewHub returns a hub.
func NewHub(c HubConfig) *Hub {
	h := &Hub{
		db: c.DB, reads: cmp.Or(c.Reads, standby.New(standby.Config{DB: c.DB})), log: c.Log, metrics: c.Metrics, presence: c.Presence, tracer: c.Tracer, buffer: c.Buffer, patience: c.Patience,
		wake: make(chan struct{}, 1), started: make(chan struct{}),
		all: map[*Subscription]struct{}{}, byDID: map[syntax.DID][]*Subscription{}, byConvo: map[uuid.UUID]map[*Subscription]struct{}{},
		reading: make(chan struct{}, max(1, c.DB.Config().MaxConns/catchUpShare)), shared: map[int64]weak.Pointer[Event]{}, shares: map[syntax.DID]*semaphore.Weighted{},
	}
	large := cmp.Or(c.Large, largeBytes)
	h.large, h.ofDID = semaphore.NewWeighted(large), max(large/largeShare, leastShare)
	h.closing, h.close = context.WithCancel(context.Background())
	h.presence.hub = h
	if h.buffer == 0 {
		h.buffer = bufferBytes
	}
	if h.patience == 0 {
		h.patience = 30 * time.Second
	}
	return h
}

// Wake makes Run read the stream now. It does not block. Any goroutine can call it.
func (h *Hub) Wake() {
	h.asked.Store(true)
	h.signal()
}

// Grown says that the stream has events up to a place, or beyond it. Run reads them now if somebody
// subscribes, and has not read them yet. It does not block. Any goroutine can call it.
func (h *Hub) Grown(place int64) {
	for {
		known := h.grown.Load()
		if place <= known {
			return
		}
		if h.grown.CompareAndSwap(known, place) {
			h.signal()
			return
		}
	}
}

func (h *Hub) signal() {
	select {
	case h.wake <- struct{}{}:
	default: // Run has not read the last one yet
	}
}

// Run reads the stream and hands its events to the subscriptions until ctx ends.
//
// It is not a worker.Every: after a full batch, and after an error, it does not wait for the next
// tick.
func (h *Hub) Run(ctx context.Context) {
	tick := time.NewTicker(tailPoll)
	defer tick.Stop()
	for ctx.Err() == nil {
		began := time.Now()
		more, err := h.round(ctx)
		if err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "the end of the stream could not be read", "error", err)
			pause(ctx, tailPoll/4)
			continue
		}
		if more {
			continue
		}
		pause(ctx, min(time.Since(began), tailRest)) // a busy database is read less often, by every node
		h.wait(ctx, tick.C)
	}
}

// wait waits until the stream is to be read. A hub without subscriptions reads only at ticks: each
// read costs the database about as much as a step of the sequencer, on every node.
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

// due reports whether the hub is to read now.
func (h *Hub) due() bool {
	if h.asked.Swap(false) {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.all) > 0 && h.grown.Load() > h.head
}

// Listen wakes the hub and the sequencer when another node notifies them, until ctx ends. Without
// it both would only be later, because both also read without a wake-up. Listen wakes them after
// each new connection as well.
func (h *Hub) Listen(ctx context.Context, s *Sequencer) {
	for delay := 100 * time.Millisecond; ctx.Err() == nil; delay = min(2*delay, 2*time.Second) {
		began := time.Now()
		if err := h.listen(ctx, s); err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "the listener failed", "error", err)
		}
		if time.Since(began) > time.Minute {
			delay = 100 * time.Millisecond
		}
		pause(ctx, delay)
	}
}

const (
	listenCheck = 30 * time.Second // how long a connection can be silent until it is pinged
	listenBegin = 3 * time.Second  // to get a connection and to begin to listen
)

func (h *Hub) listen(ctx context.Context, s *Sequencer) error {
	beginning, cancel := context.WithTimeout(ctx, listenBegin)
	defer cancel()
	pooled, err := h.db.Acquire(beginning)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	conn := pooled.Hijack() // a listening connection must not return to the pool
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := conn.Close(closing); err != nil {
			h.log.DebugContext(ctx, "the listener's connection was closed already", "error", err)
		}
	}()
	if _, err := conn.Exec(beginning, `LISTEN mlsd_outbox; LISTEN mlsd_events; LISTEN mlsd_devices`); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	h.Wake()
	s.Wake()
	for {
		waiting, cancel := context.WithTimeout(ctx, listenCheck)
		n, err := conn.WaitForNotification(waiting)
		cancel()
		switch {
		case err == nil && n.Channel == outboxChannel:
			s.wakeLeading()
		case err == nil && n.Channel == devicesChannel:
			h.endDevice(n.Payload)
		case err == nil:
			h.notified(n.Payload)
		case ctx.Err() != nil:
			return ctx.Err()
		case waiting.Err() != nil:
			pinging, cancel := context.WithTimeout(ctx, stepTimeout)
			err := conn.Ping(pinging)
			cancel()
			if err != nil {
				return fmt.Errorf("listen: %w", err)
			}
		default:
			return fmt.Errorf("listen: %w", err)
		}
	}
}

// notified takes a notification of the stream: the place up to which it has grown, or nothing if it
// has a new generation.
func (h *Hub) notified(payload string) {
	place, err := strconv.ParseInt(payload, 10, 64)
	if err != nil {
		h.Wake()
		return
	}
	h.Grown(place)
}

// round reads new events and hands them out. more says that there are possibly more already.
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
	batch, goesOn, err := h.read(ctx)
	if err != nil {
		return false, err
	}
	if !goesOn {
		return true, h.startAgain(ctx)
	}
	if len(batch) == 0 {
		return false, nil
	}
	if batch[0].StreamSeq != h.head+1 { // days were dropped while this node did not run
		s, err := readStream(ctx, h.db)
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
		h.metrics.Published(len(part), h.lag(part[len(part)-1]))
	}
	return len(batch) >= tailLimit, nil
}

// lag is the age of an event that was handed out, 0 if nobody subscribes: then it was not read at once.
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
		_, span := tracing.Follow(ctx, "event", h.tracer.WriterOf(e.ConvoID, e.Seq))
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

// read reads the next events. goesOn says that they follow the hub's head: the stream has no newer
// generation, and has not gone back.
func (h *Hub) read(ctx context.Context) (batch []*Event, goesOn bool, err error) {
	batch, now, err := h.tail.next(ctx, h.db)
	if err != nil {
		return nil, false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.indexed = now.indexed
	return batch, now.generation == h.of.newest().id && now.head >= h.head, nil
}

// ends is the state of the stream after a read.
type ends struct{ generation, head, indexed int64 }

// next reads the events that follow, of at most tailLimit rows. They end before the first place that
// is reserved: a sequencer still fills it.
func (t *tail) next(ctx context.Context, db *pgxpool.Pool) (batch []*Event, now ends, err error) {
	both := &pgx.Batch{}
	both.Queue(`
		SELECT stream_seq, day, kind, convo_id, seq, did, size, detail, created_at, convo_ids, seqs, sizes FROM events
		WHERE stream_seq > $1 AND day >= $2
			AND stream_seq <= coalesce((SELECT min(after_seq) FROM reserved_places WHERE after_seq >= $1), 9223372036854775807)
		ORDER BY stream_seq LIMIT $3`, t.head, t.day, tailLimit).Query(func(rows pgx.Rows) error {
		shared, err := pgx.CollectRows(rows, t.of.scanShared)
		batch = since(slices.Concat(shared...), t.head)
		return err
	})
	// After the events: the generation of an event is recorded before the event. The newest event is
	// where the stream ends. The row that says so has a version for each step, and PostgreSQL keeps
	// all of them while a snapshot is open.
	both.Queue(`
		SELECT (SELECT max(id) FROM generations), coalesce((SELECT max(stream_seq) FROM events), 0), (SELECT last FROM convo_events_end)`).
		QueryRow(func(row pgx.Row) error { return row.Scan(&now.generation, &now.head, &now.indexed) })
	if err := db.SendBatch(ctx, both).Close(); err != nil {
		return nil, ends{}, fmt.Errorf("read the end of the stream: %w", err)
	}
	return batch, now, nil
}

// remember reads the events of a stream that are not indexed, up to its end.
func (h *Hub) remember(ctx context.Context, s stream) (tail, error) {
	t := tail{of: s.of, head: s.head, day: s.day, indexed: s.indexed}
	if from := max(s.indexed, s.head-mostEvents, s.first-1); from < s.head {
		t.head, t.day = from, time.Time{}
	}
	for t.head < s.head {
		batch, now, err := t.next(ctx, h.db)
		switch {
		case err != nil:
			return tail{}, err
		case len(batch) == 0, now.generation != s.of.newest().id:
			return tail{}, errNotThere
		}
		for _, e := range batch {
			t.memory.add(e)
			t.head, t.day = e.StreamSeq, e.day
		}
	}
	return t, nil
}

// start begins at the end of the stream.
func (h *Hub) start(ctx context.Context) error {
	var s stream
	err := h.db.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
		if s, err = readStream(ctx, conn); err != nil {
			return err
		}
		if _, err = checkServer(ctx, conn.Conn(), s.of); err != nil { // before the first cursor is read
			return err
		}
		s, err = readStream(ctx, conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("find the end of the stream: %w", err)
	}
	at, err := h.remember(ctx, s)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tail = at
	close(h.started)
	return nil
}

// checkServer begins a generation if another PostgreSQL has taken the place of the one that wrote
// the newest one. Every node does this, so that a new database is noticed also while none leads.
func (h *Hub) checkServer(ctx context.Context) error {
	if time.Since(h.checked) < checkEvery {
		return nil
	}
	conn, err := h.db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Release()
	all, err := checkServer(ctx, conn.Conn(), h.of)
	if err != nil {
		return err
	}
	h.checked = time.Now()
	if all.newest().id == h.of.newest().id { // if not, read notices it
		h.mu.Lock()
		defer h.mu.Unlock()
		h.of = all
	}
	return nil
}

// startAgain begins to read the newest generation. If there is no new one, the stream has gone back:
// another state of the database has replaced its newest one. Then startAgain begins a generation.
func (h *Hub) startAgain(ctx context.Context) error {
	s, err := readStream(ctx, h.db)
	if err != nil {
		return err
	}
	if newest := s.of.newest(); newest.id == h.of.newest().id {
		if err := beginGeneration(ctx, h.db, newest.id, newest.by, causeWentBack); err != nil {
			return err
		}
		if s, err = readStream(ctx, h.db); err != nil {
			return err
		}
	}
	return h.jump(ctx, s)
}

// jump continues at another place of the stream. The present subscriptions have missed events, or
// have got events that no longer exist. So they end. Their clients connect again with their
// cursors, and learn then whether these are still good.
func (h *Hub) jump(ctx context.Context, to stream) error {
	at, err := h.remember(ctx, to)
	if err != nil {
		return err
	}
	h.log.Error("the stream does not go on where this node has read it",
		"generation", h.of.newest().id, "after", h.head, "new_generation", to.of.newest().id, "from", at.head+1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.all {
		s.mu.Lock()
		s.fail(ErrClosing)
		s.mu.Unlock()
	}
	h.tail = at
	clear(h.shared)
	return nil
}

// load loads the log entries of events that a live subscription will get, up to loadBytes. The
// readers load those that it leaves out.
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
	if err := loadEntries(ctx, h.db, wanted); err != nil {
		h.log.WarnContext(ctx, "log entries could not be read ahead", "error", err)
	}
}

// publish hands out the next events of the stream.
func (h *Hub) publish(batch []*Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range batch {
		h.share(e)
		switch {
		case e.Kind == outbox.Membership:
			h.publishMembership(e)
		case e.ofConvo():
			for s := range h.byConvo[e.ConvoID] {
				h.offer(s, e)
			}
		default:
			for _, s := range h.byDID[e.DID] {
				h.offer(s, e)
			}
		}
		h.head, h.day = e.StreamSeq, e.day
	}
	for _, e := range batch {
		if e.Kind.LogEntry() && len(h.byConvo[e.ConvoID]) > 0 {
			e = e.withoutEntry() // the log entry is freed when its readers are done
		}
		h.memory.add(e)
	}
	h.memory.forget(h.indexed)
}

// share returns the event to use instead of e, so that a large event is in memory once, however
// many subscriptions use it. The caller holds the hub's lock.
func (h *Hub) share(e *Event) *Event {
	if e.Size <= largeEvent {
		return e
	}
	if there := h.shared[e.StreamSeq].Value(); there != nil {
		return there
	}
	if len(h.shared) > 1000 {
		maps.DeleteFunc(h.shared, func(_ int64, p weak.Pointer[Event]) bool { return p.Value() == nil })
	}
	h.shared[e.StreamSeq] = weak.Make(e)
	return e
}

// Head is the newest event that has been handed out.
func (h *Hub) Head() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.head
}

// publishMembership hands out a membership event. A new member is added to the convo before that,
// and a former member is removed from it after that. So both get the event.
func (h *Hub) publishMembership(e *Event) {
	joined := e.Detail.Change == outbox.Joined
	for _, s := range h.byDID[e.DID] {
		if joined && s.live && e.StreamSeq > s.from {
			h.addConvo(s, e.ConvoID)
		}
	}
	for s := range h.byConvo[e.ConvoID] { // offer can remove entries from the map
		h.offer(s, e)
	}
	if joined {
		return
	}
	for _, s := range h.byDID[e.DID] {
		if s.live && e.StreamSeq > s.from {
			h.removeConvo(s, e.ConvoID)
		}
	}
}

// addConvo makes a live subscription get the events of a convo, if it wants them.
func (h *Hub) addConvo(s *Subscription, convo uuid.UUID) {
	if !s.wants(convo) {
		return
	}
	here := h.byConvo[convo]
	if here == nil {
		here = map[*Subscription]struct{}{}
		h.byConvo[convo] = here
	}
	here[s] = struct{}{}
	s.convos[convo] = struct{}{}
}

// removeConvo undoes addConvo.
func (h *Hub) removeConvo(s *Subscription, convo uuid.UUID) {
	delete(s.convos, convo)
	delete(h.byConvo[convo], s)
	if len(h.byConvo[convo]) == 0 {
		delete(h.byConvo, convo)
	}
}

// offer puts an event into a live subscription's buffer. If the buffer is full, the subscription is
// no longer live, and reads the table from there.
func (h *Hub) offer(s *Subscription, e *Event) {
	if !s.live || e.StreamSeq <= s.from || !s.wants(e.ConvoID) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 0 && s.queued+e.cost() > h.buffer {
		h.detach(s)
		s.position = e.StreamSeq - 1
		if s.behind.IsZero() {
			s.behind = time.Now()
		}
		h.metrics.FellBehind()
	} else {
		s.queue = append(s.queue, e)
		s.queued += e.cost()
	}
	s.notify()
}

// detach undoes attach. It has no effect on a subscription that is not live. The caller holds the
// hub's lock and the subscription's.
func (h *Hub) detach(s *Subscription) {
	if !s.live {
		return
	}
	for convo := range s.convos {
		h.removeConvo(s, convo)
	}
	s.live = false
	if !s.doubted {
		s.disconnected()
	}
}

// attach makes a subscription live. The subscription has all events up to its position, and convos
// are the convos of its DID there. attach fails if the hub no longer remembers the events since
// then.
func (h *Hub) attach(s *Subscription, convos map[uuid.UUID]struct{}) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.remembers(s.position) {
		return false
	}
	s.mu.Lock()
	if s.failed != nil {
		s.mu.Unlock()
		return false
	}
	s.live, s.from, s.convos = true, s.position, map[uuid.UUID]struct{}{}
	s.mu.Unlock()
	if !s.doubted {
		s.connected()
	}
	for convo := range convos {
		h.addConvo(s, convo)
	}
	h.offerMissed(s, h.memory.after(s.position))
	return true
}

// remembers reports whether the hub remembers all events after a place. The caller holds the lock.
func (h *Hub) remembers(place int64) bool { return h.head-place <= int64(len(h.memory.events)) }

// offerMissed offers a subscription the events between its position and the head.
func (h *Hub) offerMissed(s *Subscription, missed []*Event) {
	for _, e := range missed {
		mine := e.Kind == outbox.Membership && e.DID == s.did
		if mine && e.Detail.Change == outbox.Joined {
			h.addConvo(s, e.ConvoID)
		}
		_, member := s.convos[e.ConvoID]
		if e.ofConvo() && member || !e.ofConvo() && e.DID == s.did {
			h.offer(s, h.share(e.withoutEntry()))
		}
		if mine && e.Detail.Change != outbox.Joined {
			h.removeConvo(s, e.ConvoID)
		}
		if !s.live { // the events did not fit into the buffer
			return
		}
	}
}

// End ends the subscriptions of a person with why.
func (h *Hub) End(did syntax.DID, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.byDID[did] {
		s.mu.Lock()
		s.fail(why)
		s.mu.Unlock()
	}
}

// Close ends all subscriptions. New ones are refused with ErrClosing.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = ErrClosing
	h.close()
	for s := range h.all {
		s.mu.Lock()
		s.fail(ErrClosing)
		s.mu.Unlock()
	}
}
