package events_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/idem"
	"mlsd/idem/idemtest"
	"mlsd/internal/limit/limittest"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/operator/invariants"
	"mlsd/outbox"
)

const (
	alice   syntax.DID = "did:plc:alice"
	bob     syntax.DID = "did:plc:bob"
	carol   syntax.DID = "did:plc:carol"
	mallory syntax.DID = "did:plc:mallory"
)

// counts are the metrics of the stream.
type counts struct {
	mu                                  sync.Mutex
	sequenced, published, pages, behind int
}

func (c *counts) Leading(bool) {}

func (c *counts) Sequenced(n int, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequenced += n
}

func (c *counts) Published(n int, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.published += n
}

func (c *counts) CatchUp(int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pages++
}

func (c *counts) FellBehind() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind++
}

type uncounted = idemtest.Uncounted

// world is a database with writers, and the nodes that publish what they write.
type world struct {
	db  *pgxpool.Pool
	log *messages.Log
}

func newWorld(t testing.TB, options ...pgtest.Option) *world {
	t.Helper()
	w := &world{db: pgtest.Database(t, append(options, pgtest.MaxConns(24))...)}
	w.log = messages.NewLog(w.db, 0, uncounted{}, slog.New(slog.DiscardHandler), nil)
	t.Cleanup(func() {
		violations, err := invariants.Check(context.Background(), w.db)
		if err != nil || len(violations) > 0 {
			t.Errorf("violated: %q, %v", violations, err)
		}
	})
	return w
}

// newNode returns a world, and a node of it that has published what the world began with.
func newNode(t testing.TB) (*world, *node) {
	t.Helper()
	w := newWorld(t)
	n := w.node(t)
	n.publish(t)
	return w, n
}

// newConvo is newNode with a convo, in which the first member has said something said times.
func newConvo(t testing.TB, said int, members ...syntax.DID) (*world, *node, uuid.UUID) {
	t.Helper()
	w, n := newNode(t)
	convo := w.convo(t, members...)
	w.say(t, convo, members[0], said)
	n.publish(t)
	return w, n, convo
}

// node is the part of one mlsd that handles events. The test makes its rounds, unless it runs.
type node struct {
	*counts
	seq *events.Sequencer
	hub *events.Hub
}

func (w *world) node(t testing.TB, more ...func(*events.HubConfig)) *node {
	t.Helper()
	n := &node{counts: &counts{}}
	log := slog.New(slog.DiscardHandler)
	cfg := events.HubConfig{DB: w.db, Log: log, Metrics: n.counts, Presence: events.NewPresence(w.db, log)}
	for _, set := range more {
		set(&cfg)
	}
	limittest.Watch(t, func() []any { return []any{n.hub} })
	n.hub = events.NewHub(cfg)
	n.seq = events.NewSequencer(events.SequencerConfig{
		DB: w.db, Log: log, Metrics: n.counts, Retention: 7 * 24 * time.Hour, Moved: n.hub.Grown,
	})
	t.Cleanup(n.seq.Resign)
	t.Cleanup(n.hub.Close)
	return n
}

// run makes the node work by itself until the test ends or stop is called.
func (n *node) run(t testing.TB) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.seq.Run(ctx) })
	running.Go(func() { n.hub.Run(ctx) })
	running.Go(func() { events.Listen(ctx, n.hub, n.seq) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// publish moves all events into the stream and hands them to the subscriptions.
func (n *node) publish(t testing.TB) {
	t.Helper()
	for _, round := range []func(context.Context) (bool, error){n.seq.Round, n.hub.Round} {
		for more := true; more; {
			var err error
			if more, err = round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// subscribe begins a subscription, from a cursor if one is given.
func (n *node) subscribe(t testing.TB, did syntax.DID, cursor ...int64) *events.Subscription {
	t.Helper()
	r := events.Request{DID: did}
	if len(cursor) > 0 {
		r.Cursor = new(events.From(cursor[0]))
	}
	return n.subscribeTo(t, r)
}

func (n *node) subscribeTo(t testing.TB, r events.Request) *events.Subscription {
	t.Helper()
	s, err := n.hub.Subscribe(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// convo makes a convo of these people, with its events. The first one is its creator.
func (w *world) convo(t testing.TB, people ...syntax.DID) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	_, err := w.db.Exec(t.Context(), `
		WITH convo AS (
			INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2, $3, 1, 1, now())
		)
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		SELECT $1, did, CASE ord WHEN 1 THEN 'creator' ELSE 'member' END, now(), 0 FROM unnest($4::text[]) WITH ORDINALITY AS
			d (did, ord)`,
		id, id[:], people[0], people)
	if err != nil {
		t.Fatal(err)
	}
	for _, did := range people {
		w.cause(t, id, outbox.Event{Kind: outbox.Membership, DID: did,
			Detail: outbox.Detail{Change: outbox.Joined, By: people[0], Epoch: 1}})
	}
	return id
}

// cause inserts events of a convo into the outbox.
func (w *world) cause(t testing.TB, convo uuid.UUID, all ...outbox.Event) {
	t.Helper()
	batch := &pgx.Batch{}
	outbox.Queue(batch, convo, all...)
	if err := w.db.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatal(err)
	}
}

// change adds or removes a member, in a transaction under the convo's lock, as package convos does.
func (w *world) change(ctx context.Context, convo uuid.UUID, did syntax.DID, change string) error {
	return pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
		var seq int64
		if err := tx.QueryRow(ctx, `SELECT last_seq FROM convos WHERE id = $1 FOR NO KEY UPDATE`,
			convo).Scan(&seq); err != nil {
			return err
		}
		sql := `
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, $2, 'member', now(), $3)
			ON CONFLICT (convo_id, did) DO UPDATE SET joined_seq = $3, left_at = NULL, left_seq = NULL, left_epoch = NULL`
		if change != outbox.Joined {
			sql = `UPDATE members SET left_at = now(), left_seq = $3, left_epoch = 1 WHERE convo_id = $1 AND did = $2`
		}
		if _, err := tx.Exec(ctx, sql, convo, did, seq); err != nil {
			return err
		}
		return outbox.Insert(ctx, tx, convo, outbox.Event{Kind: outbox.Membership, DID: did,
			Detail: outbox.Detail{Change: change, By: did, Epoch: 1}})
	})
}

func (w *world) must(t testing.TB, convo uuid.UUID, did syntax.DID, change string) {
	t.Helper()
	if err := w.change(t.Context(), convo, did, change); err != nil {
		t.Fatal(err)
	}
}

// send appends a message and returns its seq.
func (w *world) send(ctx context.Context, convo uuid.UUID, sender syntax.DID, key, body string) (int64, error) {
	results, err := w.log.Append(ctx, []messages.Draft{draft(convo, sender, key, body)})
	if err != nil {
		return 0, err
	}
	return results[0].Seq, results[0].Err
}

func draft(convo uuid.UUID, sender syntax.DID, key, body string) messages.Draft {
	return messages.Draft{
		ConvoID: convo, GroupID: convo[:], Sender: sender, Key: key, Kind: mls.ContentTypeApplication, Epoch: 1,
		Body: mlstest.Message(convo[:], 1, body),
		Hash: idem.Content{{Name: "ciphertext", JSON: strconv.AppendQuote(nil, body)}}.Hash(),
	}
}

func (w *world) say(t testing.TB, convo uuid.UUID, sender syntax.DID, n int) {
	t.Helper()
	for range n {
		if _, err := w.send(t.Context(), convo, sender, uuid.NewString(), "hello"); err != nil {
			t.Fatal(err)
		}
	}
}

// sayTogether sends a message to each convo in one transaction, which has one row of the outbox.
func (w *world) sayTogether(t testing.TB, sender syntax.DID, convos ...uuid.UUID) {
	t.Helper()
	drafts := make([]messages.Draft, len(convos))
	for i, convo := range convos {
		drafts[i] = draft(convo, sender, uuid.NewString(), "hello")
	}
	results, err := w.log.Append(t.Context(), drafts)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

// brief is the part of an event that tests compare.
func brief(e *events.Event) string {
	switch {
	case e.Kind.LogEntry():
		return fmt.Sprintf("%d", e.Seq)
	case e.Kind == outbox.Membership:
		return fmt.Sprintf("%s %s", strings.TrimPrefix(e.DID.String(), "did:plc:"), e.Detail.Change)
	}
	return fmt.Sprintf("kind %d of %s", e.Kind, strings.TrimPrefix(e.DID.String(), "did:plc:"))
}

// patience is how long a test waits for an event that must come.
const patience = time.Minute

// next returns the next n events of a subscription. Their places must ascend.
func next(t testing.TB, s *events.Subscription, n int) (got []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last int64
	for range n {
		e, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		if e.StreamSeq <= last {
			t.Fatalf("event %d came after event %d", e.StreamSeq, last)
		}
		if e.Kind.LogEntry() && e.Message() == nil {
			t.Fatalf("event %d came without its log entry", e.StreamSeq)
		}
		last = e.StreamSeq
		got = append(got, brief(e))
	}
	return got
}

// nothing demands that a subscription has no more events. All events have been handed out before.
func nothing(t testing.TB, s *events.Subscription) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if e, err := s.Ready(ctx); e != nil || err != nil {
		t.Fatalf("there was an event: %+v, %v", e, err)
	}
}

// messageOf returns a ciphertext for a convo.
func messageOf(convo uuid.UUID) []byte { return mlstest.Message(convo[:], 1, "hello") }

// welcome outboxes a Welcome for one device of did's.
func (w *world) welcome(t testing.TB, convo uuid.UUID, did syntax.DID) {
	t.Helper()
	w.cause(t, convo, outbox.Event{Kind: outbox.Welcome, DID: did,
		Detail: outbox.Detail{Epoch: 1, DeviceID: "phone", KeyPackageRef: "0102"}})
}

// reset appends the last entry of a reset by did to a convo's log. The convo stays open.
func (w *world) reset(t testing.TB, convo uuid.UUID, did syntax.DID) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
		_, _, err := messages.AppendReset(t.Context(), tx, messages.ResetEntry{
			ConvoID: convo, Sender: did, Epoch: 1, Body: []byte("reset"), Detail: outbox.Detail{By: did, Reason: "forked"}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// arrival outboxes that did's Welcome to alice has been consumed.
func (w *world) arrival(t testing.TB, convo uuid.UUID, did syntax.DID) {
	t.Helper()
	w.cause(t, convo, outbox.Event{Kind: outbox.Arrival, DID: did,
		Detail: outbox.Detail{Change: "consumed", By: alice, Epoch: 1}})
}

// signal outboxes a signal that a stock of did's is low.
func (w *world) signal(t testing.TB, did syntax.DID) {
	t.Helper()
	w.cause(t, uuid.Nil, outbox.Event{Kind: outbox.KeyPackages, DID: did,
		Detail: outbox.Detail{Change: "low", DeviceID: "phone", CipherSuite: 1, Available: 3}})
}

// subscribeSoon subscribes from the beginning, on a node that has not started yet.
func (n *node) subscribeSoon(t testing.TB, did syntax.DID) *events.Subscription {
	t.Helper()
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n.subscribe(t, did, 0)
}
