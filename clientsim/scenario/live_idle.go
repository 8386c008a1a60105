package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"mlsd/clientsim/client"
	"mlsd/clientsim/load"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
	"mlsd/clientsim/xrpc"
)

// LiveIdle opens many streams that get no event, and measures what they cost the server. Then it
// measures how long a message takes to the last of many subscribers.
func LiveIdle(ctx context.Context, w *testbed.World) {
	withCluster(ctx, w, testbed.ClusterOptions{Nodes: 2}, func(f *testbed.Cluster) {
		b := &liveRun{w: w, cluster: f, Traffic: traffic.New(ctx, w, f, traffic.Options{Small: true})}
		err := attempt(func() { b.idle(ctx, orDefault(w.Idle, fewIdle), orDefault(w.Audience, smallAudience)) })
		check(errors.Join(err, b.Subscribers.Stop()))
	})
}

// Default numbers, and how the subscribers connect.
const (
	fewIdle       = 200
	smallAudience = 100
	perAccount    = 10  // connections
	atATime       = 100 // connections that open at the same time
	volleys       = 10  // messages to the audience
)

func (b *liveRun) idle(ctx context.Context, idle, listening int) {
	node := b.cluster.Nodes[0]
	author := must(b.w.P256Account())
	b.w.Progress("making the audience's convo")
	r, members, err := b.Gather(ctx, author, (listening+perAccount-1)/perAccount)
	check(err)
	check(b.SendTo(ctx, b.w.RNG, r))
	before := must(node.Memory(ctx))
	start := time.Now()
	b.admitIdle(ctx, idle)
	took := time.Since(start)
	xrpc.Sleep(ctx, time.Second)
	after := must(node.Memory(ctx))
	each := func(a, b int64) string { return fmt.Sprintf("%.1f KiB", float64(a-b)/1024/float64(idle)) }
	b.w.Note("%d idle subscribers, opened in %s: %s each resident (%d MiB in all), %s of heap, %s of stacks", idle,
		took.Round(time.Millisecond),
		each(after.Resident, before.Resident), after.Resident>>20, each(after.Heap, before.Heap),
		each(after.Stacks, before.Stacks))
	b.sendToAudience(ctx, r, members, listening)
	check(b.Await(ctx))
	b.w.Stats.Sent.Add(b.Sent.Load())
	if why := b.Subscribers.Counts.Reasons(); why != "" {
		b.w.Note("streams ended or were not opened: %s", why)
	}
}

// openStreams connects subscribers to the first node, not too many at a time.
func (b *liveRun) openStreams(subs []*client.Subscriber) {
	for some := range slices.Chunk(subs, atATime) {
		check(b.Subscribers.Listen(some...))
		b.w.Progress(fmt.Sprintf("%d connections", b.Subscribers.Counts.Connected.Load()))
	}
}

// admitIdle opens n streams of accounts that are in no convo.
func (b *liveRun) admitIdle(ctx context.Context, n int) {
	var subs []*client.Subscriber
	var account *xrpc.Account
	for i := range n {
		if i%perAccount == 0 {
			account = must(b.w.P256Account())
		}
		subs = append(subs, b.stream(fmt.Sprintf("idle-%d", i), account))
	}
	b.openStreams(subs)
}

func (b *liveRun) stream(name string, account *xrpc.Account, devices ...string) *client.Subscriber {
	s := b.Subscribers.Add(name, account, b.cluster.Clients[:1], devices...)
	s.By = client.ByToken
	return s
}

// sendToAudience sends messages one after the other. It waits for each until the last subscriber
// has it.
func (b *liveRun) sendToAudience(ctx context.Context, r *traffic.Convo, members []*traffic.Listener, listening int) {
	var received atomic.Int64
	var last atomic.Int64 // ns, of the latest arrival
	lag := load.NewCounter()
	var subs []*client.Subscriber
	for i := range listening {
		p := members[i/perAccount]
		s := b.stream(fmt.Sprintf("listener-%d", i), p.Account, p.Device)
		s.From = new(int64)
		s.OnEvent = func(h *xrpc.Event, at time.Time, live bool) {
			if h.Kind != xrpc.EventMessage || !live {
				return
			}
			lag.Done(arrival, at.Sub(h.At))
			for most := last.Load(); at.UnixNano() > most && !last.CompareAndSwap(most, at.UnixNano()); most = last.Load() {
			}
			received.Add(1)
		}
		subs = append(subs, s)
	}
	b.openStreams(subs)
	caughtUp := func(s *client.Subscriber) bool { _, entries := s.Observer.Count(); return entries > 0 }
	check(xrpc.Until(ctx, xrpc.CallTimeout, func() (bool, error) { // the first message came before any of them listened
		return !slices.ContainsFunc(subs, func(s *client.Subscriber) bool { return !caughtUp(s) }), b.Subscribers.Err()
	}))
	var lasts, answers []time.Duration
	for i := range volleys {
		start := time.Now()
		check(b.SendTo(ctx, rand.New(rand.NewPCG(b.w.Seed, uint64(i))), r))
		answers = append(answers, time.Since(start))
		err := xrpc.Until(ctx, xrpc.CallTimeout,
			func() (bool, error) { return received.Load() >= int64((i+1)*listening), b.Subscribers.Err() })
		if err != nil {
			fail("%d of %d got message %d: %w", received.Load()-int64(i*listening), listening, i, err)
		}
		lasts = append(lasts, time.Unix(0, last.Load()).Sub(start))
	}
	slices.Sort(lasts)
	slices.Sort(answers)
	b.w.Note("a message to %d subscribers of %d members: answered after %s, and the last had it after %s (median of %d "+
		"messages; the slowest: %s)",
		listening, len(members), answers[volleys/2].Round(time.Microsecond), lasts[volleys/2].Round(time.Microsecond),
		volleys,
		lasts[volleys-1].Round(time.Microsecond))
	b.w.Note("createdAt to arrival: %s", lag.Latencies(arrival))
}
