package scenario

import (
	"context"
	"errors"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
)

// failoverLimit bounds one failover, with the return of the old primary.
const failoverLimit = time.Minute

// Failover makes the primary of two servers crash or hang under load, again and again. Its synchronous
// standby is promoted, and the old primary comes back as the standby.
func Failover(ctx context.Context, w *testbed.World) {
	w.WithPair(ctx, true, func(f *testbed.Cluster, pair *testbed.Pair) {
		promoted := func(name string, fault func() error) outage {
			return outage{name: name, begin: func(ctx context.Context) (end func(context.Context)) {
				Check(errors.Join(fault(), pair.Promote(ctx)))
				return func(ctx context.Context) { Check(pair.Rejoin(ctx)) }
			}}
		}
		playOutages(ctx, w, f, newWriteTimes(len(f.Nodes)), failoverLimit, orDefault(w.Failovers, failoversUsual),
			promoted("primary crashed", pair.Crash), promoted("primary hung", pair.Freeze))
	})
}
