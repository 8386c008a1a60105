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
	"mlsd/clientsim/history"
	"mlsd/clientsim/load"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// LiveIdle opens many streams that get no event, and measures what they cost the server. Then it
// measures how long a message takes to the last of many subscribers.
func LiveIdle(ctx context.Context, w *testbed.World) {
	withCluster(ctx, w, testbed.ClusterOptions{Nodes: 2}, func(f *testbed.Cluster) {
		b := &liveRun{w: w, cluster: f, history: history.New(), subscribers: client.NewSubscribers(ctx, w.RNG.Uint64())}
		err := attempt(func() { b.idle(ctx, orDefault(w.Idle, fewIdle), orDefault(w.Audience, smallAudience)) })
		check(errors.Join(err, b.subscribers.Stop()))
	})
}

// Default numbers, and how the subscribers connect.
const (
	fewIdle       = 200
	smallAudience = 100
	perAccount    = 10  // connections
	atATime       = 100 // connections that open at the same time
	atCreation    = 100 // members that createConvo takes
	atOnce        = 50  // that addMembers takes
	volleys       = 10  // messages to the audience
)

func (b *liveRun) idle(ctx context.Context, idle, listening int) {
	node := b.cluster.Nodes[0]
	author := must(b.w.P256Account())
	b.w.Progress("making the audience's convo")
	r := b.makeIdleConvos(ctx, author, (listening+perAccount-1)/perAccount)
	b.send(ctx, b.w.RNG, r)
	before := must(node.Memory(ctx))
	start := time.Now()
	b.admitIdle(ctx, idle)
	took := time.Since(start)
	xrpc.Sleep(ctx, time.Second)
	after := must(node.Memory(ctx))
	each := func(a, b int64) string { return fmt.Sprintf("%.1f KiB", float64(a-b)/1024/float64(idle)) }
	b.w.Note("%d idle subscribers, opened in %s: %s each resident (%d MiB in all), %s of heap, %s of stacks", idle, took.Round(time.Millisecond),
		each(after.Resident, before.Resident), after.Resident>>20, each(after.Heap, before.Heap), each(after.Stacks, before.Stacks))
	b.sendToAudience(ctx, r, listening)
	check(b.w.AwaitAndJudge(ctx, b.subscribers, b.history, xrpc.CallTimeout))
	b.w.Stats.Sent.Add(b.sends.Load())
	if why := b.subscribers.Counts.Reasons(); why != "" {
		b.w.Note("streams ended or were not opened: %s", why)
	}
}

// makeIdleConvos makes a convo with the given number of members besides the author.
func (b *liveRun) makeIdleConvos(ctx context.Context, author *xrpc.Account, members int) *liveConvo {
	rng := b.w.RNG
	r := &liveConvo{group: mlsclient.RandomBytes(16), writers: []*xrpc.Account{author}}
	var late []*listener
	for i := range members {
		p := &listener{}
		if i < atCreation {
			p.Account = must(b.w.P256Account())
		} else {
			p = b.newListener(ctx)
			late = append(late, p)
		}
		r.members = append(r.members, p)
	}
	var founders []*xrpc.Account
	for _, p := range r.members[:min(len(r.members), atCreation)] {
		founders = append(founders, p.Account)
	}
	r.id = must(b.create(ctx, rng, author, xrpc.CreateCall(r.group, b.w.Suite, testbed.DIDsOf(founders), &mlsclient.Staged{}, xrpc.NewKey())))
	b.history.Created(r.id, author.DID, append(testbed.DIDsOf([]*xrpc.Account{author}), testbed.DIDsOf(founders)...)...)
	for some := range slices.Chunk(late, atOnce) {
		b.admit(ctx, rng, r, some...)
	}
	return r
}

// openStreams connects subscribers to the first node, not too many at a time.
func (b *liveRun) openStreams(subs []*client.Subscriber) {
	for some := range slices.Chunk(subs, atATime) {
		check(b.subscribers.Listen(some...))
		b.w.Progress(fmt.Sprintf("%d connections", b.subscribers.Counts.Connected.Load()))
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
	s := b.subscribers.Add(name, account, b.cluster.Clients[:1], devices...)
	s.By = client.ByToken
	return s
}

// sendToAudience sends messages one after the other. It waits for each until the last subscriber
// has it.
func (b *liveRun) sendToAudience(ctx context.Context, r *liveConvo, listening int) {
	var received atomic.Int64
	var last atomic.Int64 // ns, of the latest arrival
	lag := load.NewCounter()
	var subs []*client.Subscriber
	for i := range listening {
		p := r.members[i/perAccount]
		s := b.stream(fmt.Sprintf("listener-%d", i), p.Account, p.device)
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
		return !slices.ContainsFunc(subs, func(s *client.Subscriber) bool { return !caughtUp(s) }), b.subscribers.Err()
	}))
	var lasts, answers []time.Duration
	for i := range volleys {
		start := time.Now()
		b.send(ctx, rand.New(rand.NewPCG(b.w.Seed, uint64(i))), r)
		answers = append(answers, time.Since(start))
		err := xrpc.Until(ctx, xrpc.CallTimeout, func() (bool, error) { return received.Load() >= int64((i+1)*listening), b.subscribers.Err() })
		if err != nil {
			fail("%d of %d got message %d: %w", received.Load()-int64(i*listening), listening, i, err)
		}
		lasts = append(lasts, time.Unix(0, last.Load()).Sub(start))
	}
	slices.Sort(lasts)
	slices.Sort(answers)
	b.w.Note("a message to %d subscribers of %d members: answered after %s, and the last had it after %s (median of %d messages; the slowest: %s)",
		listening, len(r.members), answers[volleys/2].Round(time.Microsecond), lasts[volleys/2].Round(time.Microsecond), volleys,
		lasts[volleys-1].Round(time.Microsecond))
	b.w.Note("createdAt to arrival: %s", lag.Latencies(arrival))
}
