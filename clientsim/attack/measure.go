package attack

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/clientsim/load"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Operation is something that honest users do at a steady rate.
type Operation struct {
	Name string
	Rate float64 // per second
	// Do executes the operation once. took is how long the user has waited. 0 means that the wait
	// lasted from the time at which the call was due until Do returned.
	Do func(ctx context.Context, i int) (took time.Duration, err error)
}

// The phases of a measurement.
const (
	warming = iota - 1 // not counted
	calm
	attacked
	after
	phases
)

// Figures are the results of one operation in one phase.
type Figures struct {
	Count         int
	Success       float64 // share, 0…1
	P50, P99, Max float64 // milliseconds, of successes; with fewer than 100, P99 is the greatest
	FirstErr      string
}

// String returns the cells of a table.
func (f Figures) String() string {
	return fmt.Sprintf("%d\t%s\t%.0f\t%.0f\t%.0f", f.Count, percent(f.Success), f.P50, f.P99, f.Max)
}

// meter counts what honest users notice, by phase. An operation belongs to the phase in which it
// was due.
type meter struct {
	phase    atomic.Int64
	counters [phases]*load.Counter
}

func newMeter() *meter {
	m := &meter{}
	for i := range m.counters {
		m.counters[i] = load.NewCounter()
	}
	m.enter(warming)
	return m
}

// enter begins a phase.
func (m *meter) enter(phase int) { m.phase.Store(int64(phase)) }

// counter returns the counter of the present phase.
func (m *meter) counter(time.Time) *load.Counter {
	if phase := m.phase.Load(); phase != warming {
		return m.counters[phase]
	}
	return nil
}

// figures returns the results by operation and phase.
func (m *meter) figures() map[string][phases]Figures {
	all := map[string][phases]Figures{}
	for phase, counter := range m.counters {
		for name, op := range counter.Operations() {
			f := all[name]
			f[phase] = figuresOf(op)
			all[name] = f
		}
	}
	return all
}

func figuresOf(op *load.Operation) Figures {
	count := op.Done + op.Failures()
	quantile := func(q float64) float64 { return float64(op.Latency.ValueAtQuantile(q)) / 1e3 }
	return Figures{Count: int(count), Success: float64(op.Done) / float64(count), P50: quantile(50), P99: quantile(99),
		Max: quantile(100), FirstErr: op.First}
}

// honestLanes is how many calls of one operation may be unanswered at one time. Further calls count
// as failed.
const honestLanes = 2048

// keep executes an operation at its rate until ctx ends, and waits for the last answers.
func (m *meter) keep(ctx context.Context, op Operation) {
	calls := context.WithoutCancel(ctx) // a call that was due gets its answer
	d := load.Driver{Rate: op.Rate, Lanes: honestLanes, Count: m.counter, Full: func(r load.Request) {
		r.Count.Fail(op.Name, "", "too many calls are unanswered")
	}}
	d.Run(ctx, func(r load.Request) {
		took, err := op.Do(calls, r.I)
		switch {
		case err != nil:
			r.Count.Fail(op.Name, "", err.Error())
		case took == 0:
			r.Count.Done(op.Name, time.Since(r.Due))
		default:
			r.Count.Done(op.Name, took)
		}
	})
}

// pace calls do rate times per second until ctx ends. At most lanes calls run at one time. When all
// lanes are busy, calls are left out. pace returns when the last call has returned.
func pace(ctx context.Context, rate float64, lanes int, do func(ctx context.Context, i int)) {
	d := load.Driver{Rate: rate, Lanes: lanes, Full: load.Leave}
	d.Run(ctx, func(r load.Request) { do(ctx, r.I) })
}

// Spans are the lengths of the phases.
type Spans struct{ Warm, Calm, Attack, After time.Duration }

// measure runs the operations through all phases, and runs attack in the second phase.
func measure(ctx context.Context, m *meter, ops []Operation, s Spans, attack func(context.Context)) (err error) {
	defer Catch(&err)
	ctx, stop := context.WithCancel(ctx)
	var honest sync.WaitGroup
	for _, op := range ops {
		honest.Go(func() { m.keep(ctx, op) })
	}
	defer func() {
		stop()
		honest.Wait()
	}()
	xrpc.Sleep(ctx, s.Warm)
	m.enter(calm)
	xrpc.Sleep(ctx, s.Calm)
	m.enter(attacked)
	attacking, end := context.WithTimeout(ctx, s.Attack)
	defer end()
	failed := make(chan error, 1)
	go func() { failed <- Attempt(func() { attack(attacking) }) }()
	<-attacking.Done()
	m.enter(after)
	Check(<-failed)
	xrpc.Sleep(ctx, s.After)
	return context.Cause(ctx)
}
