package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

const (
	failoversUsual = 2
	failoverLoad   = 2 * time.Second // load before the first outage, after each outage, and after the last
	cutStill       = time.Second     // a write that is acknowledged so long after a cut was not already running
)

// internalError is the name of an answer that no fault of a database may cause. No lexicon has it.
const internalError = "InternalServerError"

// outage is a fault of the primary of a database.
type outage struct {
	name  string
	stays bool // the primary stays the primary
	// begin makes the fault. Unless the primary stays, begin waits for another primary. end ends the
	// fault, and waits until no standby is missing.
	begin func(context.Context) (end func(context.Context))
}

// outageRun is a load during outages.
type outageRun struct {
	*liveRun
	writes             *writeTimes
	gaps, nodes, whole map[string][]time.Duration // by outage; nodes has the slower node of each outage
}

// playOutages makes n outages under load, by turns. Each outage lasts at most as long as limit.
// Every acknowledged write is there once, at its seq, and is replayed. Every subscriber sees
// everything once, in order.
func playOutages(ctx context.Context, w *testbed.World, f *testbed.Cluster, writes *writeTimes, limit time.Duration,
	n int, outages ...outage) {
	r := &outageRun{
		writes: writes, gaps: map[string][]time.Duration{}, nodes: map[string][]time.Duration{},
		whole: map[string][]time.Duration{},
	}
	r.liveRun = newLiveRun(ctx, w, f, traffic.Options{Judged: true, Answered: writes.answered})
	r.length, r.pause = time.Duration(n)*limit, time.Second/10
	r.disturb = func(ctx, writing context.Context, _ time.Duration) {
		defer r.stopWriting()
		for i := range n {
			xrpc.Sleep(writing, failoverLoad)
			if writing.Err() != nil {
				Fail("the writers ended before the last outage")
			}
			one := outages[i%len(outages)]
			w.Progress(fmt.Sprintf("%s, %d of %d", one.name, i+1, n))
			Check(errs.Wrap(Attempt(func() { r.fail(ctx, one, limit) }), "%s, %d", one.name, i+1))
		}
		xrpc.Sleep(writing, failoverLoad)
	}
	r.finish = func(ctx context.Context) {
		w.Note("%d acknowledged writes were repeated: each has its first answer", Must(r.Judge(ctx)).Replayed)
	}
	r.playAndStop(ctx)
	failures := r.Counts().Failures
	if failures[internalError] > 0 {
		w.Broken("%d requests were answered with %s", failures[internalError], internalError)
	}
	w.Note("requests that were repeated, by the answer: %v", failures)
	for _, one := range outages[:min(n, len(outages))] {
		w.Note("%s, %d times: no write for %s; both nodes wrote after %s; the standby was back after another %s", one.name,
			len(r.gaps[one.name]), seconds(r.gaps[one.name]), seconds(r.nodes[one.name]), seconds(r.whole[one.name]))
	}
}

// fail makes an outage, waits until both nodes write again, and ends it.
func (r *outageRun) fail(ctx context.Context, one outage, limit time.Duration) {
	r.writes.reset()
	begun := time.Now()
	end := one.begin(ctx)
	from := time.Now()
	if one.stays {
		from = from.Add(cutStill)
	}
	Check(errs.Wrap(r.writes.await(ctx, from, limit), "a node does not write"))
	r.nodes[one.name] = append(r.nodes[one.name], time.Since(begun))
	ending := time.Now()
	end(ctx)
	r.whole[one.name] = append(r.whole[one.name], time.Since(ending))
	r.gaps[one.name] = append(r.gaps[one.name], r.writes.longest())
}

// seconds returns the median and the maximum.
func seconds(all []time.Duration) string {
	slices.Sort(all)
	return fmt.Sprintf("%.1f s (most %.1f)", all[len(all)/2].Seconds(), all[len(all)-1].Seconds())
}
