package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

const (
	failoversUsual = 2
	failoverLimit  = time.Minute // of one failover, with the return of the old primary
	failoverLoad   = 2 * time.Second
)

// Failover makes the primary of two servers crash or hang under load, again and again. Its
// synchronous standby is promoted, and the old primary comes back as the standby. Every acknowledged
// write is there once, at its seq, and is replayed. Every subscriber sees everything once, in order.
func Failover(ctx context.Context, w *testbed.World) {
	withPair(ctx, w, true, func(f *testbed.Cluster, pair *testbed.Pair) {
		b := newLiveRun(ctx, w, f)
		r := &failoverRun{liveRun: b, pair: pair, written: make([]time.Time, len(f.Nodes))}
		f.OnAnswer = r.answered
		n := orDefault(w.Failovers, failoversUsual)
		b.length = time.Duration(n) * failoverLimit
		b.disturb = func(ctx, writing context.Context, _ time.Duration) error {
			return attempt(func() { r.failOver(ctx, writing, n) })
		}
		check(b.playAndStop(ctx))
		f.OnAnswer = nil
		w.Progress("reading all logs")
		b.checkLogs(ctx)
		w.Progress("repeating all writes")
		r.replay(ctx)
		r.note()
		checkNodes(ctx, w, f)
	})
}

// failoverRun is one run of it.
type failoverRun struct {
	*liveRun
	pair   *testbed.Pair
	faults []failoverFault

	mu      sync.Mutex // guards what follows
	answers []failoverAnswer
	written []time.Time // by node: when it last acknowledged a write
	gap     time.Duration
}

// failoverAnswer is an acknowledged write.
type failoverAnswer struct {
	who    *xrpc.Account
	call   xrpc.Call
	answer xrpc.Answer
}

// failoverFault is what one failover took.
type failoverFault struct {
	crashed  bool            // else frozen
	promoted time.Duration   // from the fault until pg_promote has returned
	nodes    []time.Duration // from then until each node acknowledged a write
	gap      time.Duration   // longest time between two acknowledged writes
	rejoined time.Duration   // how long pg_rewind and catching up took
}

// answered records an acknowledged write.
func (r *failoverRun) answered(node int, who *xrpc.Account, call xrpc.Call, answer xrpc.Answer) {
	if call.Key == "" {
		return
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = append(r.answers, failoverAnswer{who, call, answer})
	last := slices.MaxFunc(r.written, time.Time.Compare)
	if !last.IsZero() {
		r.gap = max(r.gap, now.Sub(last))
	}
	r.written[node] = now
}

// failOver does n failovers, and then ends the writing. The primary crashes and hangs by turns.
func (r *failoverRun) failOver(ctx, writing context.Context, n int) {
	defer r.stopWriting()
	for i := range n {
		xrpc.Sleep(writing, failoverLoad)
		if writing.Err() != nil {
			fail("the writers ended before the last failover")
		}
		r.w.Progress(fmt.Sprintf("failover %d of %d", i+1, n))
		if err := attempt(func() { r.failOnce(ctx, i%2 == 0) }); err != nil {
			fail("failover %d: %w", i+1, err)
		}
	}
	xrpc.Sleep(writing, failoverLoad)
}

// failOnce ends or freezes the primary, promotes the standby, waits until every node writes again,
// and brings the old primary back as the standby.
func (r *failoverRun) failOnce(ctx context.Context, crash bool) {
	r.mu.Lock()
	r.gap = 0
	r.mu.Unlock()
	begun, fault := time.Now(), r.pair.Freeze
	if crash {
		fault = r.pair.Crash
	}
	check(errors.Join(fault(), r.pair.Promote(ctx)))
	promoted := time.Now()
	one := failoverFault{crashed: crash, promoted: promoted.Sub(begun)}
	err := xrpc.Until(ctx, failoverLimit, func() (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for node := len(one.nodes); node < len(r.written) && r.written[node].After(promoted); node++ {
			one.nodes = append(one.nodes, r.written[node].Sub(promoted))
		}
		one.gap = r.gap
		return len(one.nodes) == len(r.written), nil
	})
	if err != nil {
		fail("a node does not write on the promoted standby: %w", err)
	}
	returning := time.Now()
	check(r.pair.Rejoin(ctx))
	one.rejoined = time.Since(returning)
	r.faults = append(r.faults, one)
}

// note adds the times to the report.
func (r *failoverRun) note() {
	for _, crashed := range []bool{true, false} {
		var gaps, promoted, nodes, rejoined []time.Duration
		for _, one := range r.faults {
			if one.crashed == crashed {
				gaps, promoted, rejoined = append(gaps, one.gap), append(promoted, one.promoted), append(rejoined, one.rejoined)
				nodes = append(nodes, one.nodes...)
			}
		}
		what := "the primary hung"
		if crashed {
			what = "the primary crashed"
		}
		if len(gaps) > 0 {
			r.w.Note("%s, %d times: no write was acknowledged for %s; promoting the standby took %s; then each node wrote again after %s; "+
				"the old primary was the standby after another %s", what, len(gaps), spread(gaps), spread(promoted), spread(nodes), spread(rejoined))
		}
	}
	r.w.Note("%d acknowledged writes were repeated: each has its first answer", len(r.answers))
}

// spread is the median and the maximum.
func spread(all []time.Duration) string {
	slices.Sort(all)
	const ms = time.Millisecond
	return fmt.Sprintf("%s (median, most %s)", all[len(all)/2].Round(ms), all[len(all)-1].Round(ms))
}

// replay repeats all acknowledged writes, and compares the answers byte for byte.
func (r *failoverRun) replay(ctx context.Context) {
	check(r.inLanes(len(r.answers), func(rng *rand.Rand, i int) error {
		was := &r.answers[i]
		answer, err := r.cluster.Do(ctx, rng, was.who, was.call)
		if err != nil {
			return fmt.Errorf("%s repeated: %w", was.call.Method, err)
		}
		if !answer.Replayed() || string(answer.Body) != string(was.answer.Body) {
			r.w.Broken("%s repeated is answered %q (replay: %t), the first answer was %q", was.call.Method, answer.Body, answer.Replayed(), was.answer.Body)
		}
		return nil
	}))
}

// inLanes calls do for 0 to n-1, several at a time. A lane ends with its first error.
func (b *liveRun) inLanes(n int, do func(rng *rand.Rand, i int) error) error {
	const lanes = 8
	var all sync.WaitGroup
	errs := make([]error, lanes)
	for lane := range lanes {
		rng := rand.New(rand.NewPCG(b.w.Seed, uint64(lane)))
		all.Go(func() {
			for i := lane; i < n && errs[lane] == nil; i += lanes {
				errs[lane] = do(rng, i)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
