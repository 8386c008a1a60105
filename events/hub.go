package events

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"mlsd/messages"
	"mlsd/outbox"
)

const (
	tailLimit   = 1000             // events of one read
	tailPoll    = time.Second      // the net under the hub's wakes
	tailTimeout = 10 * time.Second // of one read
	loadBytes   = 8 << 20          // of log entries that are read before they are handed out; what is more, its readers fetch
	keepEvents  = 1 << 15          // newest events that a subscription can join at, without their log entries
	maxOfDID    = 16               // subscriptions
	maxOfNode   = 50_000
	bufferBytes = 1 << 20 // of what waits for one reader; and one event more, however large
	catchUps    = 4       // that read the table at once: senders need the database too
	lookEvery   = 10 * time.Second

	largeEvent = 64 << 10  // bytes: what is larger is shared by all who have it in hand …
	largeBytes = 512 << 20 // … and counted for each of them
)

// HubConfig is what a Hub is made of.
type HubConfig struct {
	DB       *pgxpool.Pool
	Log      *slog.Logger
	Metrics  Metrics
	Presence *Presence
	Buffer   int           // bytes that may wait for one reader; default: 1 MiB
	Large    int64         // bytes of large log entries that may be in hand, counted for each reader; default: 512 MiB
	Patience time.Duration // that a reader whose buffer was full has to catch up; default: 30 s
}

// Hub reads the end of the stream, once for all subscriptions of this node, and hands each event to those that it concerns.
type Hub struct {
	db       *pgxpool.Pool
	log      *slog.Logger
	metrics  Metrics
	presence *Presence
	buffer   int
	patience time.Duration
	wake     chan struct{}
	started  chan struct{} // closed once head is known
	looked   time.Time
	reading  chan struct{}       // a place for each catch-up that reads the table
	large    *semaphore.Weighted // bytes of large log entries that are being sent
	closing  context.Context
	close    context.CancelFunc

	mu      sync.Mutex
	head    int64     // the newest event that has been handed out
	day     time.Time // its partition
	recent  []*Event  // the newest ones, up to head, with no gap
	all     map[*Subscription]struct{}
	byDID   map[syntax.DID][]*Subscription           // live ones and others
	byConvo map[uuid.UUID]map[*Subscription]struct{} // live ones whose DID is a member at head
	shared  map[int64]weak.Pointer[Event]            // large ones that somebody has in hand, by place
	closed  error
}

// NewHub returns a hub.
func NewHub(c HubConfig) *Hub {
	h := &Hub{
		db: c.DB, log: c.Log, metrics: c.Metrics, presence: c.Presence, buffer: c.Buffer, patience: c.Patience,
		wake: make(chan struct{}, 1), started: make(chan struct{}),
		all: map[*Subscription]struct{}{}, byDID: map[syntax.DID][]*Subscription{}, byConvo: map[uuid.UUID]map[*Subscription]struct{}{},
		reading: make(chan struct{}, catchUps), large: semaphore.NewWeighted(cmp.Or(c.Large, largeBytes)), shared: map[int64]weak.Pointer[Event]{},
	}
	h.closing, h.close = context.WithCancel(context.Background())
	h.presence.follow(h)
	if h.buffer == 0 {
		h.buffer = bufferBytes
	}
	if h.patience == 0 {
		h.patience = 30 * time.Second
	}
	return h
}

// Wake says that the stream may have grown. It does not block, and may be called by anybody.
func (h *Hub) Wake() {
	select {
	case h.wake <- struct{}{}:
	default: // it is awake already
	}
}

// Run hands events out until ctx ends.
func (h *Hub) Run(ctx context.Context) {
	tick := time.NewTicker(tailPoll)
	defer tick.Stop()
	for ctx.Err() == nil {
		more, err := h.round(ctx)
		if err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "the end of the stream could not be read", "error", err)
			pause(ctx, tailPoll/4)
			continue
		}
		if more {
			continue
		}
		select {
		case <-h.wake:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// round reads what is new and hands it out. more says that there may be more already.
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
	rows, err := h.db.Query(ctx, `SELECT `+columns+` FROM events WHERE stream_seq > $1 AND day >= $2 ORDER BY stream_seq LIMIT $3`, h.head, h.day, tailLimit)
	if err != nil {
		return false, err
	}
	batch, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return false, err
	}
	if len(batch) == 0 {
		return false, h.look(ctx)
	}
	if batch[0].StreamSeq != h.head+1 { // this node slept while days were dropped
		h.skip(batch[0].StreamSeq-1, batch[0].day)
	}
	h.load(ctx, batch)
	h.tell(batch)
	h.metrics.Told(len(batch), time.Since(batch[len(batch)-1].At))
	return len(batch) == tailLimit, nil
}

// start learns where the stream ends now. Only round, and what it calls, changes head.
func (h *Hub) start(ctx context.Context) error {
	var head int64
	var day time.Time
	if err := h.db.QueryRow(ctx, `SELECT head, day FROM stream`).Scan(&head, &day); err != nil {
		return fmt.Errorf("ask where the stream ends: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.head, h.day = head, day
	close(h.started)
	return nil
}

// look sees every now and then whether the stream has gone back: another database has taken this one's place, and lacks its newest.
func (h *Hub) look(ctx context.Context) error {
	if time.Since(h.looked) < lookEvery {
		return nil
	}
	h.looked = time.Now()
	var head int64
	var day time.Time
	if err := h.db.QueryRow(ctx, `SELECT head, day FROM stream`).Scan(&head, &day); err != nil {
		return fmt.Errorf("ask where the stream ends: %w", err)
	}
	if head < h.head {
		h.skip(head, day)
	}
	return nil
}

// skip goes on at another place of the stream. Whoever is here has missed something, or has been told what is not so any more: it is to
// connect again with its cursor, and learns then what has become of that.
func (h *Hub) skip(head int64, day time.Time) {
	h.log.Error("the stream does not go on where this node has read it", "after", h.head, "from", head+1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.all {
		s.mu.Lock()
		s.fail(ErrClosing)
		s.mu.Unlock()
	}
	h.head, h.day, h.recent = head, day, nil
}

// load fetches the log entries of those events that somebody here waits for. It may leave some out: their readers fetch them.
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
	if err := fetch(ctx, h.db, wanted); err != nil {
		h.log.WarnContext(ctx, "log entries could not be read ahead", "error", err)
	}
}

// fetch reads the log entries of events that do not have theirs.
func fetch(ctx context.Context, db *pgxpool.Pool, wanted []*Event) error {
	refs := make([]messages.Ref, 0, len(wanted))
	for _, e := range wanted {
		if e.Message() == nil {
			refs = append(refs, messages.Ref{ConvoID: e.ConvoID, Seq: e.Seq})
		}
	}
	if len(refs) == 0 {
		return nil
	}
	found, err := messages.Load(ctx, db, refs)
	if err != nil {
		return err
	}
	for _, e := range wanted {
		if m := found[messages.Ref{ConvoID: e.ConvoID, Seq: e.Seq}]; m != nil {
			e.entry.Store(m)
		}
	}
	return nil
}

// tell hands the next events of the stream out.
func (h *Hub) tell(batch []*Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range batch {
		h.share(e)
		switch {
		case e.Kind == outbox.Membership:
			h.tellMembership(e)
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
			e = e.bare() // the other is in somebody's hand, and is to be gone when that is done
		}
		h.recent = append(h.recent, e)
	}
	if len(h.recent) > 2*keepEvents {
		h.recent = slices.Clone(h.recent[len(h.recent)-keepEvents:])
	}
}

// share returns the event that stands for e: a large one is in memory once, however many have it in hand. The hub's lock is held.
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

// tellMembership lets a new member in before it is told of its joining, and one who goes out after it is told of that.
func (h *Hub) tellMembership(e *Event) {
	joined := e.Detail.Change == outbox.Joined
	for _, s := range h.byDID[e.DID] {
		if joined && s.live && e.StreamSeq > s.from {
			h.enter(s, e.ConvoID)
		}
	}
	for s := range h.byConvo[e.ConvoID] { // which may shrink meanwhile
		h.offer(s, e)
	}
	if joined {
		return
	}
	for _, s := range h.byDID[e.DID] {
		if s.live && e.StreamSeq > s.from {
			h.exit(s, e.ConvoID)
		}
	}
}

func (h *Hub) enter(s *Subscription, convo uuid.UUID) {
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

func (h *Hub) exit(s *Subscription, convo uuid.UUID) {
	delete(s.convos, convo)
	delete(h.byConvo[convo], s)
	if len(h.byConvo[convo]) == 0 {
		delete(h.byConvo, convo)
	}
}

// offer puts an event into a live subscription's buffer. If it is full, the subscription reads on by itself from there.
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

// detach ends what attach began, if it did. The subscription's own lock is held too.
func (h *Hub) detach(s *Subscription) {
	if !s.live {
		return
	}
	for convo := range s.convos {
		h.exit(s, convo)
	}
	s.live = false
	if !s.doubted {
		h.presence.Gone(s.did, s.device)
	}
}

// attach makes a subscription live that has been told everything up to its position, when these convos were its DID's. It fails if
// the hub does not know any more what came since.
func (h *Hub) attach(s *Subscription, convos map[uuid.UUID]struct{}) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := h.head - s.position
	if since > int64(len(h.recent)) {
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
		h.presence.Connected(s.did, s.device)
	}
	for convo := range convos {
		h.enter(s, convo)
	}
	if since > 0 {
		h.replay(s, h.recent[int64(len(h.recent))-since:])
	}
	return true
}

// replay brings a subscription from its position to the head.
func (h *Hub) replay(s *Subscription, missed []*Event) {
	for _, e := range missed {
		mine := e.Kind == outbox.Membership && e.DID == s.did
		if mine && e.Detail.Change == outbox.Joined {
			h.enter(s, e.ConvoID)
		}
		_, member := s.convos[e.ConvoID]
		if e.ofConvo() && member || !e.ofConvo() && e.DID == s.did {
			h.offer(s, h.share(e.bare()))
		}
		if mine && e.Detail.Change != outbox.Joined {
			h.exit(s, e.ConvoID)
		}
		if !s.live { // it was more than the buffer holds
			return
		}
	}
}

// Close ends all subscriptions, and lets none begin any more.
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
