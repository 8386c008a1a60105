package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
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
		r := &failoverRun{pair: pair, writes: newWriteTimes(len(f.Nodes))}
		r.liveRun = newLiveRun(ctx, w, f, traffic.Options{Judged: true, Answered: r.writes.answered})
		n := orDefault(w.Failovers, failoversUsual)
		r.length = time.Duration(n) * failoverLimit
		r.disturb = func(ctx, writing context.Context, _ time.Duration) { r.failOver(ctx, writing, n) }
		r.finish = func(ctx context.Context) {
			judged := Must(r.Judge(ctx))
			w.Note("%d acknowledged writes were repeated: each has its first answer", judged.Replayed)
		}
		r.playAndStop(ctx)
		r.note()
	})
}

// failoverRun is one run of it.
type failoverRun struct {
	*liveRun
	pair   *testbed.Pair
	faults []failoverFault
	writes *writeTimes
}

// failoverFault is what one failover took.
type failoverFault struct {
	crashed  bool            // else frozen
	promoted time.Duration   // from the fault until pg_promote has returned
	nodes    []time.Duration // from then until each node acknowledged a write
	gap      time.Duration   // longest time between two acknowledged writes
	rejoined time.Duration   // how long pg_rewind and catching up took
}

// failOver does n failovers, and then ends the writing. The primary crashes and hangs by turns.
func (r *failoverRun) failOver(ctx, writing context.Context, n int) {
	defer r.stopWriting()
	for i := range n {
		xrpc.Sleep(writing, failoverLoad)
		if writing.Err() != nil {
			Fail("the writers ended before the last failover")
		}
		r.w.Progress(fmt.Sprintf("failover %d of %d", i+1, n))
		if err := Attempt(func() { r.failOnce(ctx, i%2 == 0) }); err != nil {
			Fail("failover %d: %w", i+1, err)
		}
	}
	xrpc.Sleep(writing, failoverLoad)
}

// failOnce ends or freezes the primary, promotes the standby, waits until every node writes again,
// and brings the old primary back as the standby.
func (r *failoverRun) failOnce(ctx context.Context, crash bool) {
	r.writes.reset()
	begun, fault := time.Now(), r.pair.Freeze
	if crash {
		fault = r.pair.Crash
	}
	Check(errors.Join(fault(), r.pair.Promote(ctx)))
	promoted := time.Now()
	one := failoverFault{crashed: crash, promoted: promoted.Sub(begun)}
	var err error
	one.nodes, err = r.writes.await(ctx, promoted, failoverLimit)
	if err != nil {
		Fail("a node does not write on the promoted standby: %w", err)
	}
	one.gap = r.writes.longest()
	returning := time.Now()
	Check(r.pair.Rejoin(ctx))
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
			r.w.Note("%s, %d times: no write was acknowledged for %s; promoting the standby took %s; then each node wrote "+
				"again after %s; "+
				"the old primary was the standby after another %s", what, len(gaps), spread(gaps), spread(promoted), spread(nodes),
				spread(rejoined))
		}
	}
}

// spread is the median and the maximum.
func spread(all []time.Duration) string {
	slices.Sort(all)
	const ms = time.Millisecond
	return fmt.Sprintf("%s (median, most %s)", all[len(all)/2].Round(ms), all[len(all)-1].Round(ms))
}
