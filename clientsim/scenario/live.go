package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/load"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Live makes many clients write to many subscribers, on two servers with one database. Connections
// drop, readers pause, and members come and go. The server that sequences events is killed twice,
// and the database restarts. Every subscriber sees everything that it may see, once, in order, and
// nothing else.
func Live(ctx context.Context, w *testbed.World) {
	withCluster(ctx, w, testbed.ClusterOptions{Nodes: 2}, func(f *testbed.Cluster) {
		b := newLiveRun(ctx, w, f)
		check(b.playAndStop(ctx))
	})
}

// playAndStop plays, and ends all streams.
func (b *liveRun) playAndStop(ctx context.Context) error {
	return errors.Join(attempt(func() { b.play(ctx) }), b.subscribers.Stop())
}

// arrival is what the age of an event counts as when it comes.
const arrival = "event"

func newLiveRun(ctx context.Context, w *testbed.World, f *testbed.Cluster) *liveRun {
	b := &liveRun{
		w: w, cluster: f, history: history.New(), subscribers: client.NewSubscribers(ctx, w.RNG.Uint64()), length: orDefault(w.For, liveFor),
		latencies: load.NewCounter(),
	}
	b.disturb = b.injectFaults
	return b
}

// The default size.
const (
	liveWriters     = 4
	liveConvos      = 20
	liveSubscribers = 12
	liveFor         = 5 * time.Second
)

// liveRun is one run of it.
type liveRun struct {
	w           *testbed.World
	cluster     *testbed.Cluster
	history     *history.History
	subscribers *client.Subscribers
	writers     []*xrpc.Account
	listeners   []*listener

	mu     sync.RWMutex // guards convos
	convos []*liveConvo

	// prepare, if not nil, is called for each subscriber before it listens, when everything else of
	// it is set.
	prepare func(*client.Subscriber)
	// onSent, if not nil, gets each acknowledged message instead of the history.
	onSent      func(convo string, seq int64, m history.EntryDigest)
	length      time.Duration                                                  // how long they write, if limit is 0
	limit       time.Duration                                                  // how long at most until disturb ends the writing
	pause       time.Duration                                                  // half of the longest time between two changes of rosters; 0: by length
	mostConvos  int                                                            // after that no change makes a convo; 0: any number
	disturb     func(ctx, writing context.Context, length time.Duration) error // goes on beside the writers
	stopWriting func()                                                         // before length is over

	sends, changes atomic.Int64
	longestSend    atomic.Int64 // ns, retries included
	catchUps       atomic.Int64 // events that came late, after a reconnect
	// start is when the writers began, in ns. The events before it made the convos, all at once: their
	// latencies do not count.
	start     atomic.Int64
	latencies *load.Counter
	// last is when the newest event came to any subscriber, and gap the longest time between two
	// events, in ns.
	last, gap atomic.Int64
	// began and done are when the last fault began and ended, in ns. done is 0 once an event that
	// happened later has arrived.
	began, done atomic.Int64
	after       chan time.Duration
}

// listener is an account that listens.
type listener struct {
	*xrpc.Account
	device string
	ref    []byte // of its last-resort KeyPackage
}

// liveConvo is a convo in which two accounts write at once and some listen.
type liveConvo struct {
	// mu is write-locked for a roster change, and read-locked by every writer. So it is known who
	// must see a message.
	mu                  sync.RWMutex
	id                  string
	group               []byte
	epoch               uint64
	writers             []*xrpc.Account // the first is the creator
	members, nonMembers []*listener
}

func (b *liveRun) play(ctx context.Context) {
	w := b.w
	length := b.length
	b.makeAccounts(ctx, orDefault(w.Writers, liveWriters), orDefault(w.Subscribers, liveSubscribers), length)
	w.Progress("making convos")
	b.makeConvos(ctx, orDefault(w.Convos, liveConvos))
	start := time.Now()
	b.start.Store(start.UnixNano())
	writing, cancel := context.WithTimeout(ctx, max(length, b.limit))
	defer cancel()
	b.stopWriting = cancel
	var all sync.WaitGroup
	errs := make([]error, 3)
	all.Go(func() { errs[0] = attempt(func() { b.write(ctx, writing) }) })
	if !w.Calm {
		all.Go(func() { errs[1] = attempt(func() { b.changeRosters(ctx, writing, length) }) })
		all.Go(func() { errs[2] = b.disturb(ctx, writing, length) })
	}
	for writing.Err() == nil {
		xrpc.Sleep(writing, time.Second)
		received, _ := b.count()
		w.Progress(fmt.Sprintf("%s: %d sent, %d received", time.Since(start).Round(time.Second), b.sends.Load(), received))
	}
	sent := b.sends.Load()
	took := time.Since(start)
	all.Wait()
	check(errors.Join(errs...))
	w.Progress("waiting until every subscriber has everything")
	waiting := time.Now()
	check(w.AwaitAndJudge(ctx, b.subscribers, b.history, xrpc.CallTimeout))
	b.noteFigures(sent, took, time.Since(waiting))
}

func orDefault[T int | time.Duration](n, usual T) T {
	if n > 0 {
		return n
	}
	return usual
}

// noteFigures adds what was measured to the report.
func (b *liveRun) noteFigures(sent int64, took, waited time.Duration) {
	w, t := b.w, &b.subscribers.Counts
	events, entries := b.count()
	w.Stats.Sent.Add(b.sends.Load())
	w.Note("%d messages in %s, %.0f a second, by %d writers to %d convos; %d changes of rosters and epochs", sent, took.Round(time.Millisecond),
		float64(sent)/took.Seconds(), len(b.writers), len(b.convos), b.changes.Load())
	w.Note("%d events came to %d subscribers, %d of them log entries, %d of them late after a reconnect; the last %s after the last message",
		events, len(b.subscribers.All), entries, b.catchUps.Load(), max(waited-client.QuietTime, 0).Round(time.Millisecond))
	w.Note("%d connections: %d dropped, %d ended with 1012, %d with ConsumerTooSlow, %d otherwise, %d not opened",
		t.Connected.Load(), t.Dropped.Load(), t.Restarted.Load(), t.Slow.Load(), t.Broke.Load(), t.Failed.Load())
	if why := t.Reasons(); why != "" {
		w.Note("why: %s", why)
	}
	if age := b.latencies.Latencies(arrival); age.TotalCount() > 0 {
		w.Note("createdAt to arrival on an open connection: %s", age)
	}
}

func (b *liveRun) count() (events, entries int64) {
	for _, s := range b.subscribers.All {
		e, n := s.Observer.Count()
		events, entries = events+e, entries+n
	}
	return events, entries
}

// makeAccounts makes the writers, and the subscribers, which listen from the beginning.
func (b *liveRun) makeAccounts(ctx context.Context, writers, subscribers int, length time.Duration) {
	b.after = make(chan time.Duration, 1)
	for range writers {
		account := must(b.w.P256Account())
		b.writers = append(b.writers, account)
	}
	b.w.Progress("making subscribers")
	for i := range subscribers {
		p := b.newListener(ctx)
		b.listeners = append(b.listeners, p)
		s := b.subscribers.Add(fmt.Sprintf("subscriber-%d", i), p.Account, b.cluster.Clients, p.device)
		s.From = new(int64) // the account is new: this is everything that there ever was for it
		s.OnEvent = b.measure
		if !b.w.Calm {
			s.ConnectionLife = length / 3
			s.ServerSent = i%10 == 2
			if i%10 == 1 {
				s.Pause, s.OnEvent = length*3/10, nil // it pauses, so its latency does not count
			}
		}
		if b.prepare != nil {
			b.prepare(s)
		}
	}
	check(b.subscribers.Listen(b.subscribers.All...))
}

// newListener makes an account with a device that can be added to any number of convos.
func (b *liveRun) newListener(ctx context.Context) *listener {
	account := must(b.w.P256Account())
	p := must(client.NewPhone("listener", account, b.w.Suite, b.cluster.Clients[0], b.w.Model))
	kp := must(p.Device.LastResort())
	ref := must(mlsclient.PackageRef(kp.Message))
	must(b.cluster.Do(ctx, b.w.RNG, account, xrpc.PublishCall(kp, b.w.Suite, xrpc.NewKey())))
	return &listener{Account: account, device: p.DeviceID(), ref: ref}
}

// measure measures how long an event took.
func (b *liveRun) measure(h *xrpc.Event, at time.Time, live bool) {
	if last := b.last.Swap(at.UnixNano()); last != 0 {
		for gap := b.gap.Load(); at.UnixNano()-last > gap && !b.gap.CompareAndSwap(gap, at.UnixNano()-last); gap = b.gap.Load() {
		}
	}
	if !live {
		b.catchUps.Add(1)
		return
	}
	if start := b.start.Load(); start != 0 && h.At.UnixNano() >= start {
		b.latencies.Done(arrival, at.Sub(h.At))
	}
	if done := b.done.Load(); done != 0 && h.At.UnixNano() > done && b.done.CompareAndSwap(done, 0) {
		b.after <- at.Sub(time.Unix(0, b.began.Load()))
	}
}

// makeConvos makes the convos, several at a time.
func (b *liveRun) makeConvos(ctx context.Context, convos int) {
	const lanes = 8
	var all sync.WaitGroup
	errs := make([]error, lanes)
	for lane := range lanes {
		rng := rand.New(rand.NewPCG(b.w.RNG.Uint64(), uint64(lane)))
		all.Go(func() {
			for i := lane; i < convos && errs[lane] == nil; i += lanes {
				errs[lane] = b.open(ctx, rng)
			}
		})
	}
	all.Wait()
	check(errors.Join(errs...))
}

// open makes a convo of two writers and some listeners.
func (b *liveRun) open(ctx context.Context, rng *rand.Rand) error {
	r := &liveConvo{group: mlsclient.RandomBytes(16), writers: []*xrpc.Account{b.writers[rng.IntN(len(b.writers))]}}
	if second := b.writers[rng.IntN(len(b.writers))]; second != r.writers[0] {
		r.writers = append(r.writers, second)
	}
	members := r.writers[1:len(r.writers):len(r.writers)]
	for i, at := range rng.Perm(len(b.listeners)) {
		if i < 2+rng.IntN(3) {
			r.members = append(r.members, b.listeners[at])
			members = append(members, b.listeners[at].Account)
		} else if len(r.nonMembers) < 3 {
			r.nonMembers = append(r.nonMembers, b.listeners[at])
		}
	}
	dids := testbed.DIDsOf(members)
	out, err := b.create(ctx, rng, r.writers[0], xrpc.CreateCall(r.group, b.w.Suite, dids, &mlsclient.Staged{}, xrpc.NewKey()))
	if err != nil {
		return err
	}
	r.id = out
	b.history.Created(r.id, r.writers[0].DID, append(testbed.DIDsOf(r.writers[:1]), dids...)...)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.convos = append(b.convos, r)
	return nil
}

// some picks a convo at random.
func (b *liveRun) some(rng *rand.Rand) *liveConvo {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.convos[rng.IntN(len(b.convos))]
}
