package scenario

import (
	"context"
	"slices"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/internal/errs"
)

const (
	patroniRound = 4 * time.Minute  // limit of one fault, including the return of the failed machine
	patroniEach  = 6 * patroniRound // limit of each fault once
	patroniNone  = 5 * time.Second  // without a write for so long, somebody decides about the full disk
)

// Patroni makes the primary of three PostgreSQL fail in six ways under load, again and again. It
// does nothing else: Patroni must make another PostgreSQL the primary.
func Patroni(ctx context.Context, w *testbed.World) {
	w.WithPatroni(ctx, func(f *testbed.Cluster, p *testbed.Patroni) {
		writes := newWriteTimes(len(f.Nodes))
		for _, fault := range patroniFaults(p, writes) {
			if len(w.Faulty) == 0 || slices.Contains(w.Faulty, fault.name) {
				playOutages(ctx, w, f, writes, patroniRound, orDefault(w.Failovers, failoversUsual), fault)
			}
		}
		w.CheckNodes(ctx, f)
	})
}

func patroniFaults(p *testbed.Patroni, writes *writeTimes) []outage {
	type step func(context.Context, testbed.Whole) error
	fault := func(name string, stays bool, begin, end step) outage {
		return outage{name: name, stays: stays, begin: func(ctx context.Context) func(context.Context) {
			was := Must(p.AwaitWhole(ctx))
			Check(begin(ctx, was))
			if !stays {
				Must(p.Primary(ctx, was.Primary))
			}
			return func(ctx context.Context) {
				Check(end(ctx, was))
				Must(p.AwaitWhole(ctx))
			}
		}}
	}
	mend := func(ctx context.Context, _ testbed.Whole) error { return p.Mend(ctx) }
	switchover := func(ctx context.Context, was testbed.Whole) error {
		return p.Switchover(ctx, was.Primary, was.Synchronous)
	}
	return []outage{
		fault("primary killed", false,
			func(ctx context.Context, was testbed.Whole) error { return p.Kill(ctx, was.Primary) },
			func(_ context.Context, was testbed.Whole) error { return p.Restart(was.Primary) }),
		fault("primary frozen", false,
			func(ctx context.Context, was testbed.Whole) error { return p.Freeze(ctx, was.Primary) },
			func(ctx context.Context, was testbed.Whole) error { return p.Thaw(ctx, was.Primary) }),
		// Patroni does not look at the disk: a PostgreSQL that cannot write stays the primary until
		// somebody decides.
		fault("its disk full", false,
			func(ctx context.Context, was testbed.Whole) (err error) {
				defer Catch(&err)
				Check(p.FillDisk(was.Primary))
				Check(errs.Wrap(writes.awaitNone(ctx, patroniNone, patroniRound), "writes go on without a disk"))
				return switchover(ctx, was)
			},
			func(_ context.Context, was testbed.Whole) error { return p.FreeDisk(was.Primary) }),
		fault("cut from its standby", true,
			func(ctx context.Context, was testbed.Whole) error { return p.Cut(ctx, was.Primary, was.Synchronous) }, mend),
		fault("cut from both others", false, func(ctx context.Context, was testbed.Whole) error {
			return p.Cut(ctx, was.Primary, p.Others(was.Primary)...)
		}, mend),
		fault("switchover", false, switchover, func(context.Context, testbed.Whole) error { return nil }),
	}
}
