package messages_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/idem"
	"mlsd/internal/await"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/messages"
)

// outcome is what Send has returned.
type outcome struct {
	messages.Receipt
	err error
}

// node returns another log on f's database, without faults.
func (f *fixture) node(options ...messages.Option) *messages.Log {
	options = append([]messages.Option{messages.WithShards(2), f.inStream()}, options...) // on every machine
	return messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), nil, options...)
}

// later sends d and returns where its outcome will be.
func (f *fixture) later(ctx context.Context, d messages.Draft) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		r, err := f.Send(ctx, d)
		done <- outcome{r, err}
	}()
	return done
}

// pause sends a message to convo. Its transaction waits before COMMIT until resume, and its shard
// waits with it.
func (f *fixture) pause(t *testing.T, convo uuid.UUID) (paused <-chan outcome, resume func()) {
	t.Helper()
	return f.pauseAt(t, f.draft(convo, alice, "paused", "paused"))
}

// pauseAt is pause with a message of the caller's.
func (f *fixture) pauseAt(t *testing.T, d messages.Draft) (paused <-chan outcome, resume func()) {
	t.Helper()
	failpointtest.Arm(t, f.faults, failpoint.BeforeCommit, nsid.SendMessage, failpoint.Pause)
	reached := f.faults.Reached(failpoint.BeforeCommit, nsid.SendMessage)
	paused = f.later(t.Context(), d)
	<-reached
	resume = sync.OnceFunc(func() { f.faults.Resume(failpoint.BeforeCommit, nsid.SendMessage) })
	t.Cleanup(resume)
	return paused, resume
}

// queued waits until n drafts wait.
func (f *fixture) queued(t *testing.T, n int) {
	t.Helper()
	await.Until(t, fmt.Sprint(n, " drafts wait"), func() bool { return f.Queued() == n })
}

// lock runs query in a transaction that keeps its locks until release.
func (f *fixture) lock(t *testing.T, query string, args ...any) (release func()) {
	t.Helper()
	tx, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	if _, err := tx.Exec(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
	return release
}

const lockConvo = `SELECT FROM convos WHERE id = $1 FOR NO KEY UPDATE`

func (f *fixture) count(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	if err := f.db.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestHundredIdentical: a hundred equal requests at once, over two nodes, append one message. All
// of them get its answer.
func TestHundredIdentical(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	nodes := []*messages.Log{f.Log, f.node()}
	got := make([]outcome, 100)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			got[i].Receipt, got[i].err = nodes[i%2].Send(t.Context(), f.draft(f.convos[0], alice, "k", "x"))
		})
	}
	wg.Wait()
	first := 0
	for _, g := range got {
		if g.err != nil || g.Seq != 1 || g.ID != got[0].ID || !g.At.Equal(got[0].At) {
			t.Errorf("%+v", g)
		}
		if !g.Replayed {
			first++
		}
	}
	if n := f.count(t, `SELECT count(*) FROM messages`); n != 1 || first != 1 {
		t.Errorf("%d rows, %d firsts", n, first)
	}
}

// TestCallerHangsUp: a caller that hangs up does not affect the others of its batch. A draft that
// was waiting is not written. A draft that was being written is, and a retry finds it.
func TestCallerHangsUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	convo := f.convos[0]
	ctx, hangUp := context.WithCancel(t.Context())
	failpointtest.Arm(t, f.faults, failpoint.BeforeCommit, nsid.SendMessage, failpoint.Pause)
	reached := f.faults.Reached(failpoint.BeforeCommit, nsid.SendMessage)
	writing := f.later(ctx, f.draft(convo, alice, "writing", "x"))
	<-reached
	waiting := f.later(ctx, f.draft(convo, alice, "waiting", "x"))
	f.queued(t, 1)
	neighbour := f.later(t.Context(), f.draft(convo, alice, "neighbour", "x"))
	f.queued(t, 2)
	hangUp()
	for _, gone := range []<-chan outcome{writing, waiting} {
		if got := <-gone; !errors.Is(got.err, context.Canceled) {
			t.Fatalf("%+v", got)
		}
	}
	f.queued(t, 1)
	f.faults.Resume(failpoint.BeforeCommit, nsid.SendMessage)
	if got := <-neighbour; got.err != nil || got.Seq != 2 {
		t.Fatalf("the neighbour: %+v", got)
	}
	if r, err := f.Send(t.Context(), f.draft(convo, alice, "writing", "x")); err != nil || !r.Replayed || r.Seq != 1 {
		t.Fatalf("the retry of what was being written: %+v, %v", r, err)
	}
	if r, err := f.Send(t.Context(), f.draft(convo, alice, "waiting", "x")); err != nil || r.Replayed || r.Seq != 3 {
		t.Fatalf("the retry of what was waiting: %+v, %v", r, err)
	}
}

// TestQueueIsBounded: the messages that wait are bounded by count and by bytes.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ paused, size, fit int }{ // besides the one that is paused
		"count": {paused: 1, size: 1, fit: messages.MostSends - 1},
		"bytes": {paused: 100 << 10, size: 10 << 20, fit: messages.MostSendBytes / (10 << 20)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 0)
			paused, resume := f.pauseAt(t, f.draft(f.convos[0], alice, "paused", strings.Repeat("x", test.paused)))
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			body := make([]byte, test.size)
			draft := func(i int) messages.Draft {
				d := f.draft(f.convos[0], alice, fmt.Sprint(i), "x")
				d.Body = body
				return d
			}
			waiting := make([]<-chan outcome, test.fit)
			for i := range waiting {
				waiting[i] = f.later(ctx, draft(i))
			}
			f.queued(t, test.fit)
			if _, err := f.Send(t.Context(), draft(test.fit)); !errors.Is(err, messages.ErrOverloaded) {
				t.Fatalf("one too many: %v", err)
			}
			hangUp()
			for _, w := range waiting {
				<-w
			}
			resume()
			<-paused
			if n, bytes := f.Sending(); n != 0 || bytes != 0 {
				t.Fatalf("%d messages, %d bytes are still counted", n, bytes)
			}
			if r, err := f.Send(t.Context(), f.draft(f.convos[0], alice, "after", "x")); err != nil || r.Seq != 2 {
				t.Fatalf("%+v, %v", r, err)
			}
		})
	}
}

// TestOtherShardGoesOn: one shard writes while another waits for its COMMIT.
func TestOtherShardGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	here, there := f.convos[0], f.convos[1]
	for tries := 0; f.SameShard(here, there); tries++ {
		if tries == 50 {
			t.Fatal("all convos are of one shard")
		}
		there = uuid.Must(uuid.NewV7())
		f.addConvo(t, there)
	}
	paused, resume := f.pause(t, here)
	if r, err := f.Send(t.Context(), f.draft(there, alice, "k", "x")); err != nil || r.Seq != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	resume()
	<-paused
}

// TestLargeMessages: small messages do not wait for the transaction of large ones (H10).
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1),
		f.inStream(),
		f.onReserved(t))
	large, resume := f.pauseAt(t, f.draft(f.convos[0], alice, "large", strings.Repeat("x", 100<<10)))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if r, err := f.Send(ctx, f.draft(f.convos[1], alice, "small", "x")); err != nil || r.Seq != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	resume()
	if got := <-large; got.err != nil {
		t.Error(got.err)
	}
}

// busy has the ways to make a convo busy: lock the convo's row, or its row in push_convos.
var busy = map[string]func(f *fixture, t *testing.T, convo uuid.UUID) (release func()){
	"convo": func(f *fixture, t *testing.T, convo uuid.UUID) func() { return f.lock(t, lockConvo, convo) },
	"push": func(f *fixture, t *testing.T, convo uuid.UUID) func() {
		_, err := f.db.Exec(t.Context(), `
			INSERT INTO push_targets (did, device_id, kind, address, created_at, registration)
			VALUES ('did:plc:bob', 'phone', 'webhook', 'https://example.com', now(), gen_random_uuid())`)
		if err != nil {
			t.Fatal(err)
		}
		return f.lock(t, `INSERT INTO push_convos (convo_id, sender_did, created_at) VALUES ($1, 'did:plc:alice', now())`,
			convo)
	},
}

// TestBusyConvoHoldsUpNoOther: a convo whose row, or whose row in push_convos, is locked delays its
// own messages only.
func TestBusyConvoHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, hold := range busy {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 0)
			f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1),
				f.inStream(),
				f.onReserved(t))
			busy, idle := f.convos[0], f.convos[1]
			paused, resume := f.pause(t, idle)
			release := hold(f, t, busy)
			var waiting, passing []<-chan outcome
			for i := range 4 { // of one batch
				waiting = append(waiting, f.later(t.Context(), f.draft(busy, alice, fmt.Sprint(i), "x")))
				passing = append(passing, f.later(t.Context(), f.draft(idle, bob, fmt.Sprint(i), "x")))
			}
			f.queued(t, 8)
			resume()
			<-paused
			for _, p := range passing {
				if got := <-p; got.err != nil {
					t.Error(got.err)
				}
			}
			if n := f.count(t, `SELECT count(*) FROM messages WHERE convo_id = $1`, busy); n != 0 {
				t.Errorf("%d messages in a locked convo", n)
			}
			release()
			for _, w := range waiting {
				if got := <-w; got.err != nil {
					t.Error(got.err)
				}
			}
			await.Until(t, "the log is idle", f.Idle)
		})
	}
}

// TestSameKeyRunning: a request whose key another transaction is writing gets RequestInProgress
// after the lock timeout, on another node and on the same one. On another node so does a request
// with another key in the same convo: it cannot tell what holds the convo.
func TestSameKeyRunning(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	paused, resume := f.pause(t, f.convos[0])
	other := f.node(f.onReserved(t))
	var waiting sync.WaitGroup
	for _, w := range []struct {
		log  *messages.Log
		key  string
		held bool
	}{{other, "paused", true}, {other, "another", true}, {f.Log, "paused", false}} {
		waiting.Go(func() {
			_, err := w.log.Send(t.Context(), f.draft(f.convos[0], alice, w.key, "paused"))
			if !errors.Is(err, idem.ErrInProgress) || errors.Is(err, messages.ErrHeld) != w.held {
				t.Errorf("%s: %v", w.key, err)
			}
		})
	}
	waiting.Wait()
	resume()
	if got := <-paused; got.err != nil || got.Replayed {
		t.Fatalf("%+v", got)
	}
	if r, err := other.Send(t.Context(), f.draft(f.convos[0], alice, "paused", "paused")); err != nil || !r.Replayed {
		t.Fatalf("%+v, %v", r, err)
	}
}

// TestOrderOfOneSender: messages that a sender sends one after the other are in that order.
func TestOrderOfOneSender(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	nodes := []*messages.Log{f.Log, f.node()}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			last := int64(0)
			for i := range 25 {
				r, err := nodes[(w+i)%2].Send(t.Context(), f.draft(f.convos[0], alice, fmt.Sprint(w, i), "x"))
				if err != nil || r.Seq <= last {
					t.Errorf("seq %d after %d, %v", r.Seq, last, err)
				}
				last = r.Seq
			}
		})
	}
	wg.Wait()
}

// TestLostBatch: the COMMIT of a batch is lost. A draft that the log has is appended, even if
// another request appended it. A refused draft stays refused. The outcome of the others is unknown.
func TestLostBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	convo := f.convos[0]
	recorded := f.append(t, f.draft(convo, alice, "recorded", "recorded"))[0]
	batch := []messages.Draft{
		f.draft(convo, alice, "rival", "x"), f.draft(convo, alice, "taken", "x"), f.draft(convo, alice, "gone", "x"),
		f.draft(convo, mallory, "outsider", "x"), f.draft(convo, alice, "recorded", "recorded"),
		f.draft(convo, alice, "rival", "x"),
	}
	done := make(chan []messages.Result, 1)
	resume := f.killAtCommit(t, func() { done <- f.Write(t.Context(), batch...) })
	rivals := f.append(t, f.draft(convo, alice, "taken", "other"), f.draft(convo, alice, "rival", "x"))
	resume()
	got := <-done
	for i, want := range []error{nil, idem.ErrUnknownOutcome, idem.ErrUnknownOutcome, messages.ErrConvoNotFound, nil,
		nil} {
		if !errors.Is(got[i].Err, want) || want == nil && got[i].Err != nil {
			t.Errorf("%d: %+v, want %v", i, got[i], want)
		}
	}
	if got[0].ID != rivals[1].ID || got[0].Replayed || got[5].ID != rivals[1].ID || got[4].ID != recorded.ID ||
		!got[4].Replayed {
		t.Errorf("%+v", got)
	}

	failpointtest.Arm(t, f.faults, failpoint.AfterCommit, nsid.SendMessage, failpoint.Error)
	got = f.Write(t.Context(), f.draft(convo, alice, "a", "x"), f.draft(f.convos[1], bob, "b", "x"),
		f.draft(convo, carol, "c", "x"))
	if got[0].Err != nil || got[0].Seq != 4 || got[1].Err != nil || got[1].Seq != 1 ||
		!errors.Is(got[2].Err, messages.ErrNotMember) {
		t.Errorf("%+v", got)
	}
}

// TestSessionsDie: sessions die at random while the senders of two nodes retry every unknown
// outcome. Every key is one message, and every answer is that message's.
func TestSessionsDie(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	nodes := []*messages.Log{f.node(), f.node()}
	const senders, each = 32, 60
	var unknown, kills atomic.Int64
	var got [senders][each]messages.Receipt
	ctx, stop := context.WithCancel(t.Context())
	var killing, sending sync.WaitGroup
	killing.Go(func() {
		rng := rand.New(rand.NewPCG(7, 7))
		for ctx.Err() == nil {
			tag, err := f.db.Exec(t.Context(), `
				SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE '%unnest(%'
				ORDER BY random() LIMIT 1`)
			if err == nil {
				kills.Add(tag.RowsAffected())
			}
			time.Sleep(time.Duration(rng.IntN(8)) * time.Millisecond)
		}
	})
	for s := range senders {
		sending.Go(func() {
			for i := range each {
				d := f.draft(f.convos[i%2], alice, fmt.Sprint(s/2, i), "x") // each key by two senders
				r, err := nodes[s%2].Send(t.Context(), d)
				for ; err != nil; r, err = nodes[rand.IntN(2)].Send(t.Context(), d) {
					if !errors.Is(err, idem.ErrUnknownOutcome) && !pgpool.Unavailable(err) && !errors.Is(err, idem.ErrInProgress) {
						t.Error(err)
						return
					}
					unknown.Add(1)
				}
				got[s][i] = r
			}
		})
	}
	sending.Wait()
	stop()
	killing.Wait()
	f.db.Reset() // some sessions may have been killed while they were idle
	for s := range senders {
		for i, r := range got[s] {
			convo, key := f.convos[i%2], fmt.Sprint(s/2, i)
			if n := f.count(t, `SELECT count(*) FROM messages WHERE convo_id = $1 AND seq = $2 AND idempotency_key = $3`, convo,
				r.Seq, key); n != 1 {
				t.Errorf("key %s: seq %d is another's", key, r.Seq)
			}
		}
	}
	if n := f.count(t, `SELECT count(*) FROM messages`); n != senders/2*each {
		t.Errorf("%d messages of %d keys", n, senders/2*each)
	}
	if kills.Load() == 0 || unknown.Load() == 0 {
		t.Errorf("%d sessions killed, %d sends retried", kills.Load(), unknown.Load())
	}
}

// TestDrain: what was accepted is written before the log is closed, and nothing is accepted after.
func TestDrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	paused, resume := f.pause(t, f.convos[0])
	var waiting []<-chan outcome
	for i := range 10 {
		waiting = append(waiting, f.later(t.Context(), f.draft(f.convos[0], alice, fmt.Sprint(i), "x")))
	}
	f.queued(t, 10)
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Close(impatient); !errors.Is(err, context.Canceled) {
		t.Fatalf("closed with messages under way: %v", err)
	}
	if _, err := f.Send(t.Context(), f.draft(f.convos[0], alice, "late", "x")); !errors.Is(err, messages.ErrClosed) {
		t.Fatalf("late: %v", err)
	}
	resume()
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := f.count(t, `SELECT count(*) FROM messages`); n != 11 {
		t.Errorf("%d messages when the log was closed", n)
	}
	for _, w := range append(waiting, paused) {
		if got := <-w; got.err != nil {
			t.Error(got.err)
		}
	}
	if err := f.node().Close(t.Context()); err != nil {
		t.Errorf("one that did nothing: %v", err)
	}
}

// TestLostBatchIsLookedUp: the COMMIT of a batch is lost. A draft that the log has is appended, and
// replayed if it was there before the batch (X4). The outcome of the others is unknown.
func TestLostBatchIsLookedUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	before, during := f.draft(f.convos[0], alice, "before", "x"), f.draft(f.convos[0], alice, "during", "x")
	first := f.append(t, before)[0]
	for began := time.Now(); time.Since(began) < 5*time.Millisecond; { // created_at has whole milliseconds
		f.count(t, `SELECT 1`)
	}
	began := time.Now()
	second := f.append(t, during)[0]
	got := f.Lost(t.Context(), began, before, during, f.draft(f.convos[0], alice, "never", "x"))
	if got[0].Err != nil || got[0].ID != first.ID || !got[0].Replayed {
		t.Errorf("the draft from before: %+v", got[0])
	}
	if got[1].Err != nil || got[1].ID != second.ID || got[1].Replayed {
		t.Errorf("the draft of the batch: %+v", got[1])
	}
	if !errors.Is(got[2].Err, idem.ErrUnknownOutcome) {
		t.Errorf("the draft that the log does not have: %+v", got[2])
	}
}

// Once a connection knows the statements, a message that is alone waits for the server once. A
// message that must be judged waits twice more: for what it is judged by, and for the COMMIT.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	var trips pgtest.Trips
	db := pgtest.Database(t, pgtest.MaxConns(1), pgtest.CountTrips(&trips))
	f := &fixture{db: db, epoch: 5}
	convo := uuid.Must(uuid.NewV7())
	f.addConvo(t, convo)
	f.Log = f.node()
	for i, key := range []string{"a", "a", "b", "b"} { // the second of each is a repetition
		before := trips.Count()
		if _, err := f.Send(t.Context(), f.draft(convo, alice, key, "x")); err != nil {
			t.Fatal(err)
		}
		if n, want := trips.Count()-before, int64(1+2*(i%2)); i > 1 && n != want {
			t.Errorf("message %d: %d round trips, want %d", i, n, want)
		}
	}
}

// TestOnBatch: OnBatch counts every message in one batch. Messages that come at once share batches.
func TestOnBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	var batches, sends atomic.Int64
	log := f.node(messages.WithShards(1), messages.OnBatch(func(n int) {
		batches.Add(1)
		sends.Add(int64(n))
	}))
	const n = 200
	var sending sync.WaitGroup
	for i := range n {
		sending.Go(func() {
			if _, err := log.Send(t.Context(), f.draft(f.convos[0], alice, fmt.Sprint(i), "hello")); err != nil {
				t.Error(err)
			}
		})
	}
	sending.Wait()
	if sends.Load() != n || batches.Load() >= n {
		t.Errorf("%d messages in %d batches", sends.Load(), batches.Load())
	}
}

// An outsider's message to a convo that has a lane of its own is refused at once. In the lane it
// would wait with the members' messages, and the wait would show that the convo exists.
func TestOutsiderPassesTheLane(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	release := f.lock(t, lockConvo, f.convos[0])
	member := f.later(t.Context(), f.draft(f.convos[0], alice, "a", "x"))
	await.Until(t, "the convo is busy", func() bool { return f.Busy(f.convos[0]) })
	pgtest.AwaitLockWaits(t, f.db, 1)
	if _, err := f.Send(t.Context(), f.draft(f.convos[0], mallory, "m", "x")); !errors.Is(err, messages.ErrConvoNotFound) {
		t.Errorf("the outsider: %v", err)
	}
	select {
	case o := <-member:
		t.Fatalf("the member's message did not wait: %+v", o)
	default:
	}
	release()
	if o := <-member; o.err != nil {
		t.Errorf("the member: %v", o.err)
	}
}
