package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
	"mlsd/clientsim/xrpc"
)

const (
	patroniRound = 4 * time.Minute  // at most, of one fault with the return of what failed
	patroniEach  = 6 * patroniRound // at most, of each fault once
	patroniStill = time.Second      // after a cut, a write that comes later is not one that was under way
	patroniNone  = 5 * time.Second  // without a write: then somebody decides that the full disk is full
)

// internalError is the name of an answer that no fault of a database may cause. No lexicon has it.
const internalError = "InternalServerError"

// patroniFault is a fault of a machine, and what ends it.
type patroniFault struct {
	name  string
	begin func(context.Context, *patroniRun, testbed.Whole) error
	end   func(context.Context, *patroniRun, testbed.Whole) error // nil: nothing is left of it
	stays bool                                                    // the primary stays the primary
}

func patroniFaults() []patroniFault {
	mend := func(ctx context.Context, r *patroniRun, _ testbed.Whole) error { return r.patroni.Mend(ctx) }
	switchover := func(ctx context.Context, r *patroniRun, was testbed.Whole) error {
		return r.patroni.Switchover(ctx, was.Primary, was.Synchronous)
	}
	return []patroniFault{
		{
			name: "primary killed",
			begin: func(ctx context.Context, r *patroniRun, was testbed.Whole) error {
				return r.patroni.Kill(ctx, was.Primary)
			},
			end: func(_ context.Context, r *patroniRun, was testbed.Whole) error { return r.patroni.Restart(was.Primary) },
		},
		{
			name: "primary frozen",
			begin: func(ctx context.Context, r *patroniRun, was testbed.Whole) error {
				return r.patroni.Freeze(ctx, was.Primary)
			},
			end: func(ctx context.Context, r *patroniRun, was testbed.Whole) error {
				return r.patroni.Thaw(ctx, was.Primary)
			},
		},
		{
			// Patroni does not look at the disk: a PostgreSQL that cannot write stays the primary until
			// somebody decides.
			name: "its disk full",
			begin: func(ctx context.Context, r *patroniRun, was testbed.Whole) error {
				if err := r.patroni.FillDisk(was.Primary); err != nil {
					return err
				}
				if err := r.writes.awaitNone(ctx, patroniNone, patroniRound); err != nil {
					return fmt.Errorf("writes go on without a disk: %w", err)
				}
				return switchover(ctx, r, was)
			},
			end: func(_ context.Context, r *patroniRun, was testbed.Whole) error {
				return r.patroni.FreeDisk(was.Primary)
			},
		},
		{
			name: "cut from its standby", stays: true, end: mend,
			begin: func(ctx context.Context, r *patroniRun, was testbed.Whole) error {
				return r.patroni.Cut(ctx, was.Primary, was.Synchronous)
			},
		},
		{
			name: "cut from both others", end: mend,
			begin: func(ctx context.Context, r *patroniRun, was testbed.Whole) error {
				return r.patroni.Cut(ctx, was.Primary, r.patroni.Others(was.Primary)...)
			},
		},
		{name: "switchover", begin: switchover},
	}
}

// Patroni makes the primary of three PostgreSQL fail in six ways under load, again and again, and
// does nothing else: Patroni must make another one the primary. Every acknowledged write is there
// once, at its seq, and is replayed. Every subscriber sees everything once, in order.
func Patroni(ctx context.Context, w *testbed.World) {
	faults := patroniFaults()
	if len(w.Faulty) > 0 {
		faults = slices.DeleteFunc(faults, func(f patroniFault) bool { return !slices.Contains(w.Faulty, f.name) })
	}
	n := orDefault(w.Failovers, failoversUsual)
	Check(w.WithPatroni(ctx, func(f *testbed.Cluster, p *testbed.Patroni) error {
		return Attempt(func() {
			w.Note("%-21s %5s %13s %8s %17s %23s %10s", "fault", "times", "writes", "broken", "without a write, s",
				"both nodes write after, s", "whole, s")
			for _, fault := range faults {
				r := &patroniRun{patroni: p, fault: fault, writes: newWriteTimes(len(f.Nodes))}
				r.liveRun = newLiveRun(ctx, w, f, traffic.Options{Judged: true, Answered: r.writes.answered})
				r.play(ctx, n)
			}
			checkNodes(ctx, w, f)
		})
	}))
}

// patroniRun is n times one fault, with accounts and convos of its own.
type patroniRun struct {
	*liveRun
	patroni *testbed.Patroni
	fault   patroniFault
	writes  *writeTimes

	gaps, nodes, whole []time.Duration // by fault; nodes: the slower one of each
}

func (r *patroniRun) play(ctx context.Context, n int) {
	before := len(r.w.Found())
	r.length = time.Duration(n) * patroniRound
	r.pause = time.Second / 10
	r.disturb = func(ctx, writing context.Context, _ time.Duration) { r.failAll(ctx, writing, n) }
	replayed := 0
	r.finish = func(ctx context.Context) { replayed = Must(r.Judge(ctx)).Replayed }
	r.playAndStop(ctx)
	failures := r.Counts().Failures
	if n := failures[internalError]; n > 0 {
		r.w.Broken("%s: %d requests were answered with %s", r.fault.name, n, internalError)
	}
	r.w.Note("%s: requests that were repeated, by the answer: %v", r.fault.name, failures)
	r.w.Note("%-21s %5d %13d %8d %17s %23s %10s", r.fault.name, len(r.gaps), replayed, len(r.w.Found())-before,
		seconds(r.gaps), seconds(r.nodes), seconds(r.whole))
}

// failAll makes the fault n times, and then ends the writing.
func (r *patroniRun) failAll(ctx, writing context.Context, n int) {
	defer r.stopWriting()
	for i := range n {
		xrpc.Sleep(writing, failoverLoad)
		if writing.Err() != nil {
			Fail("the writers ended before the last fault")
		}
		r.w.Progress(fmt.Sprintf("%s, %d of %d", r.fault.name, i+1, n))
		if err := Attempt(func() { r.failOnce(ctx) }); err != nil {
			Fail("%s, %d: %w", r.fault.name, i+1, err)
		}
	}
	xrpc.Sleep(writing, failoverLoad)
}

// failOnce waits until nothing is missing, makes the fault, waits until both nodes write again, and
// ends the fault.
func (r *patroniRun) failOnce(ctx context.Context) {
	was := Must(r.patroni.AwaitWhole(ctx))
	r.writes.reset()
	begun := time.Now()
	Check(r.fault.begin(ctx, r, was))
	from := time.Now().Add(patroniStill)
	if !r.fault.stays {
		Must(r.patroni.Primary(ctx, was.Primary))
		from = time.Now()
	}
	if _, err := r.writes.await(ctx, from, patroniRound); err != nil {
		Fail("a node does not write: %w", err)
	}
	r.nodes = append(r.nodes, time.Since(begun))
	returning := time.Now()
	if r.fault.end != nil {
		Check(r.fault.end(ctx, r, was))
	}
	Must(r.patroni.AwaitWhole(ctx))
	r.whole = append(r.whole, time.Since(returning))
	r.gaps = append(r.gaps, r.writes.longest())
}

// seconds is the median and the maximum, in seconds.
func seconds(all []time.Duration) string {
	slices.Sort(all)
	if len(all) == 0 {
		return "-"
	}
	return strings.TrimSpace(fmt.Sprintf("%.1f, %.1f", all[len(all)/2].Seconds(), all[len(all)-1].Seconds()))
}
