package relay_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/coder/websocket"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/convos"
	"mlsd/features/relay"
	"mlsd/internal/await"
	"mlsd/internal/pgtest"
	"mlsd/people/accounts"
)

const (
	alice = syntax.DID("did:plc:aaaaaaaaaaaaaaaaaaaaaaaa")
	bob   = syntax.DID("did:plc:bbbbbbbbbbbbbbbbbbbbbbbb")
	carol = syntax.DID("did:plc:cccccccccccccccccccccccc")
)

const patience = 20 * time.Second // for what must happen

// fake is a relay. It keeps its frames, and sends each connection those after its cursor.
type fake struct {
	t   *testing.T
	web *httptest.Server

	mu        sync.Mutex
	changed   *sync.Cond
	frames    []frame
	conns     map[*websocket.Conn]context.CancelFunc
	cursors   []string // of the connections, in their order
	refuse    func(cursor string) [][]byte
	jetstream bool
}

type frame struct {
	seq  int64
	wire []byte
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, conns: map[*websocket.Conn]context.CancelFunc{}}
	f.changed = sync.NewCond(&f.mu)
	f.web = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.drop()
		f.web.CloseClientConnections()
		f.web.Close()
	})
	return f
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		f.t.Error(err)
		return
	}
	defer func() { _ = ws.CloseNow() }()
	ctx, cancel := context.WithCancel(ws.CloseRead(context.Background()))
	defer cancel()
	cursor := r.URL.Query().Get("cursor")
	f.mu.Lock()
	f.cursors = append(f.cursors, cursor)
	refuse := f.refuse
	f.conns[ws] = cancel
	next := len(f.frames)
	if after, err := strconv.ParseInt(cursor, 10, 64); err == nil {
		for next = 0; next < len(f.frames) && f.frames[next].seq <= after; next++ {
		}
	}
	f.changed.Broadcast()
	f.mu.Unlock()
	defer context.AfterFunc(ctx, f.changed.Broadcast)()
	if refuse != nil {
		for _, wire := range refuse(cursor) {
			if wire == nil {
				return
			}
			_ = ws.Write(ctx, websocket.MessageBinary, wire) // a lost connection is no fault of the test
		}
	}
	for {
		f.mu.Lock()
		for next >= len(f.frames) && ctx.Err() == nil {
			f.changed.Wait()
		}
		if ctx.Err() != nil {
			delete(f.conns, ws)
			f.mu.Unlock()
			return
		}
		wire := f.frames[next].wire
		next++
		f.mu.Unlock()
		kind := websocket.MessageBinary
		if f.jetstream {
			kind = websocket.MessageText
		}
		if ws.Write(ctx, kind, wire) != nil {
			return
		}
	}
}

// say adds frames to the stream.
func (f *fake) say(seq int64, wire []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frames = append(f.frames, frame{seq, wire})
	f.changed.Broadcast()
}

// drop ends all connections.
func (f *fake) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cancel := range f.conns {
		cancel()
	}
	f.changed.Broadcast()
}

// connections waits for the n-th connection, and returns its cursor.
func (f *fake) connections(n int) string {
	f.t.Helper()
	defer time.AfterFunc(patience, f.changed.Broadcast).Stop()
	deadline := time.Now().Add(patience)
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.cursors) < n {
		if time.Now().After(deadline) {
			f.t.Fatalf("there were %d connections, not %d", len(f.cursors), n)
		}
		f.changed.Wait()
	}
	return f.cursors[n-1]
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.cursors)
}

// encode is a frame of subscribeRepos, as another implementation of DAG-CBOR writes it.
func encode(t *testing.T, parts ...map[string]any) (wire []byte) {
	t.Helper()
	for _, part := range parts {
		b, err := atdata.MarshalCBOR(part)
		if err != nil {
			t.Fatal(err)
		}
		wire = append(wire, b...)
	}
	return wire
}

// noon is the time of the relay's first event.
var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func stamp(seq int64) string { return noon.Add(time.Duration(seq) * time.Second).Format(time.RFC3339) }

// account says that an account is active ("") or has a status.
func (f *fake) account(seq int64, did syntax.DID, status string) {
	f.t.Helper()
	body := map[string]any{"seq": seq, "did": did.String(), "time": stamp(seq), "active": status == ""}
	if status != "" {
		body["status"] = status
	}
	f.say(seq, encode(f.t, map[string]any{"op": int64(1), "t": "#account"}, body))
}

func (f *fake) identity(seq int64, did syntax.DID) {
	f.t.Helper()
	f.say(seq, encode(f.t, map[string]any{"op": int64(1), "t": "#identity"},
		map[string]any{"seq": seq, "did": did.String(), "time": stamp(seq)}))
}

// commit is a commit of alice's that changes the records at these paths.
func (f *fake) commit(seq int64, size int, paths ...string) {
	f.t.Helper()
	ops := []any{}
	for _, path := range paths {
		ops = append(ops, map[string]any{"action": "create", "path": path})
	}
	f.say(seq, encode(f.t, map[string]any{"op": int64(1), "t": "#commit"},
		map[string]any{"seq": seq, "repo": alice.String(), "time": stamp(seq), "blocks": atdata.Bytes(make([]byte, size)),
			"ops": ops}))
}

// world is a database, a relay, and nodes that follow it.
type world struct {
	t     *testing.T
	db    *pgxpool.Pool
	relay *fake
	store *accounts.Store
	kind  relay.Kind
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: pgtest.Database(t, pgtest.MaxConns(16)), relay: newFake(t),
		store: accounts.NewStore(time.Hour, convos.HandOver)}
	_, err := w.db.Exec(t.Context(), `
		INSERT INTO push_targets (did, device_id, kind, address, created_at, registration)
		SELECT did, 'phone', 'webhook', 'https://example.com', now(), gen_random_uuid() FROM unnest($1::text[]) AS named
			(did)`, []syntax.DID{alice, bob})
	w.check(err)
	return w
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// node is one that follows, or would if no other did.
type node struct {
	w         *world
	stop      func()
	stored    chan struct{}
	forgotten chan syntax.DID
	registry  *prometheus.Registry
	forgets   func(syntax.DID) error
	db        *pgxpool.Pool
	log       *slog.Logger
}

func (w *world) node(options ...func(*node)) *node {
	w.t.Helper()
	n := &node{
		w: w, stored: make(chan struct{}, 1000), forgotten: make(chan syntax.DID, 1000), registry: prometheus.NewRegistry(),
		forgets: func(syntax.DID) error { return nil }, db: w.db, log: slog.New(slog.DiscardHandler),
	}
	for _, o := range options {
		o(n)
	}
	address := w.relay.web.URL
	if w.kind == relay.Jetstream {
		address += "/subscribe"
	}
	source, err := relay.ParseSource(address)
	w.check(err)
	follower, err := relay.New(relay.Config{
		DB: n.db, Source: source, Store: w.store, Log: n.log, Metrics: relay.NewMetrics(n.registry),
		Forget: func(_ context.Context, did syntax.DID) error {
			if err := n.forgets(did); err != nil {
				return err
			}
			n.forgotten <- did
			return nil
		},
		Stored: func() { n.stored <- struct{}{} },
		Delay:  func(int) time.Duration { return time.Millisecond }, ElectEvery: 5 * time.Millisecond,
	})
	w.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { follower.Run(ctx) })
	n.stop = func() {
		cancel()
		running.Wait()
	}
	w.t.Cleanup(n.stop)
	return n
}

// stores waits until statuses are stored.
func (n *node) stores() {
	n.w.t.Helper()
	select {
	case <-n.stored:
	case <-time.After(patience):
		n.w.t.Fatal("nothing was stored")
	}
}

// forgetsNext waits for the next account whose keys are forgotten.
func (n *node) forgetsNext() syntax.DID {
	n.w.t.Helper()
	select {
	case did := <-n.forgotten:
		return did
	case <-time.After(patience):
		n.w.t.Fatal("no keys were forgotten")
		return ""
	}
}

// metric returns the value of a metric, the sum of its series with this label value, or "".
func (n *node) metric(name, label string) (sum float64) {
	n.w.t.Helper()
	families, err := n.registry.Gather()
	n.w.check(err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func (w *world) status(did syntax.DID) accounts.Status {
	w.t.Helper()
	a, err := w.store.Get(w.t.Context(), w.db, did)
	w.check(err)
	return a.Status
}

// until waits until the database says yes.
func (w *world) until(sql string, args ...any) {
	w.t.Helper()
	await.Until(w.t, sql, func() (yes bool) {
		w.check(w.db.QueryRow(w.t.Context(), sql, args...).Scan(&yes))
		return yes
	})
}

// cursor waits until the cursor is stored.
func (w *world) cursor(seq int64) {
	w.t.Helper()
	w.until(`SELECT EXISTS (SELECT FROM relay_cursors WHERE cursor = $1)`, seq)
}
