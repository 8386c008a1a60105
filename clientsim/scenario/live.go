package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/clientsim/client"
	"mlsd/clientsim/load"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
	"mlsd/clientsim/xrpc"
)

// Live makes many clients write to many subscribers, on two servers with one database. Connections
// drop, readers pause, and members come and go. The server that sequences events is killed twice,
// and the database restarts. Every subscriber sees everything that it may see, once, in order, and
// nothing else.
func Live(ctx context.Context, w *testbed.World) {
	w.WithCluster(ctx, testbed.ClusterOptions{Nodes: 2, Settings: unlimited(ctx, w)}, func(f *testbed.Cluster) {
		b := newLiveRun(ctx, w, f, traffic.Options{Roles: 2})
		b.playAndStop(ctx)
	})
}

// arrival is the operation that the age of an arriving event counts as.
const arrival = "event"

// The default size.
const (
	liveWriters     = 4
	liveConvos      = 20
	liveSubscribers = 12
	liveFor         = 5 * time.Second
)

// liveRun is one run of Live.
type liveRun struct {
	*traffic.Traffic
	w       *testbed.World
	cluster *testbed.Cluster

	length time.Duration // how long the clients write
	pause  time.Duration // the average time between two changes of rosters; 0 means that it depends on length
	// disturb runs beside the writers.
	disturb     func(ctx, writing context.Context, length time.Duration)
	stopWriting func()                    // ends the writing before length is over
	finish      func(ctx context.Context) // judges; nil means that it judges what the subscribers have seen

	catchUps atomic.Int64 // events that arrived late, after a reconnect
	// start is when the writers began, in ns. Earlier events come from making the convos, all at once.
	// Their latencies do not count.
	start     atomic.Int64
	latencies *load.Counter
	// began and done are when the last fault began and ended, in ns. done becomes 0 when a
	// later event has arrived.
	began, done atomic.Int64
	after       chan time.Duration
}

// newLiveRun prepares a run. A number of o that is 0 gets its value from the world's options, or
// the usual value.
func newLiveRun(ctx context.Context, w *testbed.World, f *testbed.Cluster, o traffic.Options) *liveRun {
	b := &liveRun{w: w, cluster: f, length: orDefault(w.For, liveFor), latencies: load.NewCounter(),
		after: make(chan time.Duration, 1)}
	b.disturb = b.injectFaults
	o.Writers, o.Listeners = orDefault(w.Writers, liveWriters), orDefault(w.Subscribers, liveSubscribers)
	o.Convos, o.Small = orDefault(w.Convos, liveConvos), w.Calm
	listen := o.Listen
	o.Listen = func(i int, s *client.Subscriber) {
		b.listen(i, s)
		if listen != nil {
			listen(i, s)
		}
	}
	b.Traffic = traffic.New(ctx, w, f, o)
	return b
}

// listen says how the i-th subscriber listens. Of ten subscribers, one reads server-sent events and
// one pauses.
func (b *liveRun) listen(i int, s *client.Subscriber) {
	s.OnEvent = b.measure
	if b.w.Calm {
		return
	}
	s.ConnectionLife = b.length / 3
	s.ServerSent = i%10 == 2
	if i%10 == 1 {
		s.Pause, s.OnEvent = b.length*3/10, nil // a subscriber that pauses has no latency that counts
	}
}

// measure measures how long an event took to arrive.
func (b *liveRun) measure(h *xrpc.Event, at time.Time, live bool) {
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

// playAndStop plays, and ends all streams.
func (b *liveRun) playAndStop(ctx context.Context) {
	Check(errors.Join(Attempt(func() { b.play(ctx) }), b.Subscribers.Stop()))
}

func (b *liveRun) play(ctx context.Context) {
	w, length := b.w, b.length
	Check(b.Prepare(ctx))
	start := time.Now()
	b.start.Store(start.UnixNano())
	writing, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	b.stopWriting = cancel
	var all sync.WaitGroup
	errs := make([]error, 3)
	all.Go(func() { errs[0] = b.SendAll(ctx, writing, float64(w.Rate)) })
	if !w.Calm {
		all.Go(func() { errs[1] = b.ChangeAll(ctx, writing, orDefault(b.pause, max(length/400, 10*time.Millisecond))) })
		all.Go(func() { errs[2] = Attempt(func() { b.disturb(ctx, writing, length) }) })
	}
	for writing.Err() == nil {
		xrpc.Sleep(writing, time.Second)
		received, _ := b.count()
		w.Progress(fmt.Sprintf("%s: %d sent, %d received", time.Since(start).Round(time.Second), b.Sent.Load(), received))
	}
	sent, took := b.Sent.Load(), time.Since(start)
	all.Wait()
	Check(errors.Join(errs...))
	waiting := time.Now()
	if b.finish == nil {
		Check(b.Await(ctx))
		w.Note("the last event came %s after the last message",
			max(time.Since(waiting)-client.QuietTime, 0).Round(time.Millisecond))
	} else {
		b.finish(ctx)
	}
	b.noteFigures(sent, took)
}

func orDefault[T int | time.Duration](n, usual T) T {
	if n > 0 {
		return n
	}
	return usual
}

// noteFigures adds the measured figures to the report.
func (b *liveRun) noteFigures(sent int64, took time.Duration) {
	w, t := b.w, &b.Subscribers.Counts
	events, entries := b.count()
	w.Stats.Sent.Add(b.Sent.Load())
	w.Note("%d messages in %s, %.0f a second, by %d writers to %d convos; %d changes of rosters and epochs", sent,
		took.Round(time.Millisecond),
		float64(sent)/took.Seconds(), len(b.Writers), len(b.Convos()), b.Changes.Load())
	w.Note("%d events came to %d subscribers, %d of them log entries, %d of them late after a reconnect",
		events, len(b.Subscribers.All), entries, b.catchUps.Load())
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
	for _, s := range b.Subscribers.All {
		e, n := s.Observer.Count()
		events, entries = events+e, entries+n
	}
	return events, entries
}

// injectFaults kills the leader, restarts the database, and kills the next leader.
func (b *liveRun) injectFaults(ctx, writing context.Context, length time.Duration) {
	for _, step := range []struct {
		name string
		do   func(context.Context)
	}{
		{"the leader was killed", b.killLeader},
		{"PostgreSQL was restarted", b.restartDatabase},
		{"the leader was killed again", b.killLeader},
	} {
		xrpc.Sleep(writing, length/6)
		if writing.Err() != nil {
			b.w.Note("there was no time until %s", step.name)
			return
		}
		b.w.Progress(step.name)
		step.do(ctx)
		select {
		case after := <-b.after:
			b.w.Note("%s: the next event came %s later", step.name, after.Round(time.Millisecond))
		case <-writing.Done(): // on a busy machine the faults can take as long as the writers write
			b.w.Note("%s: the writers ended before the next event", step.name)
			return
		case <-time.After(xrpc.CallTimeout):
			Fail("%s, and no event came for %s", step.name, xrpc.CallTimeout)
		}
	}
}

func (b *liveRun) killLeader(ctx context.Context) {
	leader := Must(b.cluster.Leader(ctx))
	b.began.Store(time.Now().UnixNano())
	Check(leader.Kill())
	b.done.Store(time.Now().UnixNano())
	// The other server is alone for a while.
	xrpc.Sleep(ctx, time.Second/2)
	Check(leader.Start(ctx, nil))
}

func (b *liveRun) restartDatabase(ctx context.Context) {
	b.began.Store(time.Now().UnixNano())
	Check(b.cluster.Postgres.Stop())
	b.done.Store(time.Now().UnixNano())
	Check(b.cluster.Postgres.Start(ctx))
}
