package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/clientsim/bench/report"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// phase is one piece of load that is measured.
type phase struct {
	variant  string
	turn     int
	binary   int               // index of the binary that the servers run
	mode     testbed.SendsMode // how they write
	auth     string            // how senders say who they are; "": by service-auth tokens
	convos   *convoSet
	rate     float64 // open loop; 0: closed
	inFlight int     // unanswered requests at any time; 0: as configured
	span     time.Duration
	warm     time.Duration // before it, not counted; 0: as configured
	order    []operation   // nil: only sends
	// storm runs meanwhile, and the phase lasts until it ends. It counts its own operations.
	storm       func(context.Context, *counter) error
	subscribers int
	quiet       bool     // no live view
	limited     bool     // everybody gets no more than its share of the processors
	streams     *streams // whose events count; nil: none
	// stalled, unless nil, gets the sends of the phase and the stalls of the machine meanwhile.
	stalled func(r *report.Run, requests []timed, stalls []stall)
}

// window is the time that counts, in ns since the phase began. 0 means not yet.
type window struct {
	began         time.Time
	opens, closes atomic.Int64
}

func (w *window) now() int64 { return int64(time.Since(w.began)) }

// holds reports whether a time is inside the window.
func (w *window) holds(at int64) bool {
	opens, closes := w.opens.Load(), w.closes.Load()
	return opens != 0 && at >= opens && (closes == 0 || at < closes)
}

// over reports whether the window is closed.
func (w *window) over() bool { return w.closes.Load() != 0 }

// currentSecond collects the latencies of the present second.
type currentSecond struct {
	mu      sync.Mutex // guards latency
	latency *report.Latency
}

func (p *currentSecond) add(micros int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.latency.RecordValue(micros) // a value beyond the histogram is in no second
}

// next ends the second.
func (p *currentSecond) next(at time.Duration) report.Second {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.latency
	s := report.Second{
		At: at, Done: l.TotalCount(), P50: time.Duration(l.ValueAtQuantile(50)) * time.Microsecond,
		P99: time.Duration(l.ValueAtQuantile(99)) * time.Microsecond,
	}
	l.Reset()
	return s
}

// counter counts the operations of many goroutines. They are few enough to share a lock.
type counter struct {
	mu         sync.Mutex // guards operations
	operations map[string]*report.Operation
}

func newCounter() *counter { return &counter{operations: map[string]*report.Operation{}} }

// add counts one operation. An empty failure means success.
func (c *counter) add(name string, took time.Duration, failure string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	op := c.operations[name]
	if op == nil {
		op = &report.Operation{Failed: map[string]int64{}, Latency: report.NewLatency()}
		c.operations[name] = op
	}
	if failure != "" {
		op.Failed[failure]++
		return
	}
	op.Done++
	_ = op.Latency.RecordValue(micros(int64(took)))
}

// latency returns a copy of the latencies of an operation so far.
func (c *counter) latency(name string) *report.Latency {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := report.NewLatency()
	if op := c.operations[name]; op != nil {
		found.Merge(op.Latency.Histogram)
	}
	return found
}

// micros converts a latency from ns to µs, within the histogram's range.
func micros(ns int64) int64 { return min(max(ns/1000, 1), (10 * time.Minute).Microseconds()) }

// run runs a phase and adds its result to the report.
func (b *bench) run(ctx context.Context, s phase) (*report.Run, error) {
	if s.mode == "" {
		s.mode = testbed.SendsTogether
	}
	if s.span == 0 {
		s.span = b.c.For
	}
	if s.inFlight == 0 {
		s.inFlight = b.c.InFlight
	}
	if s.warm == 0 {
		s.warm = b.c.Warm
	}
	changed, err := b.env.use(ctx, s.binary)
	if err != nil {
		return nil, err
	}
	if changed {
		s.warm = max(s.warm, b.c.WarmStart)
		for _, w := range b.workers {
			w.close()
		}
	}
	if s.rate == 0 && s.auth != AuthSession && b.rates[s.variant] == 0 { // to know how many tokens it will need
		probe := s
		probe.span, probe.quiet = probeFor, true
		r, err := b.play(ctx, probe)
		if err != nil {
			return nil, err
		}
		b.learn(&s, r)
	}
	r, err := b.play(ctx, s)
	if err != nil {
		return nil, err
	}
	b.learn(&s, r)
	if len(r.Operations) == 0 { // enough messages came before the window opened
		return r, nil
	}
	b.report.Runs = append(b.report.Runs, *r)
	if late, sent := b.late(), r.Operations[opSend.String()]; sent != nil && late > sent.Done/50 {
		b.note("%s, turn %d: %d tokens were signed under load", s.variant, s.turn, late)
	}
	return r, nil
}

// probeFor is how long a variant runs at first, to see how fast it is.
const probeFor = 500 * time.Millisecond

// play runs a phase and returns its result.
func (b *bench) play(ctx context.Context, s phase) (_ *report.Run, err error) {
	if err := b.prepare(ctx, &s); err != nil {
		return nil, err
	}
	if err := b.env.setMode(ctx, s.mode); err != nil {
		return nil, err
	}
	if s.limited {
		if err := b.env.shares.limit(); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, b.env.shares.lift()) }()
	}
	runtime.GC() // now, so that it does not run during the measurement
	win, beat := &window{began: time.Now()}, &currentSecond{latency: report.NewLatency()}
	r := &report.Run{Variant: s.variant, Turn: s.turn, Load: report.Load{
		InFlight: s.inFlight, Rate: s.rate, Servers: len(b.env.servers), Convos: len(s.convos.convos), Members: s.convos.members,
		BodyBytes: s.convos.body, Faults: b.c.Faults, Senders: len(s.convos.senders), Subscribers: s.subscribers,
	}}
	workers := b.workers[:s.inFlight]
	var all sync.WaitGroup
	var p *pacer
	if s.rate > 0 {
		p = newPacer(s.rate)
		all.Go(func() { p.run(win) })
		for _, w := range workers {
			all.Go(func() { w.open(ctx, win, beat, p.due) })
		}
	} else {
		for _, w := range workers {
			all.Go(func() { w.closed(ctx, win, beat) })
		}
	}
	var probe *stallProbe
	if s.stalled != nil {
		var err error
		if probe, err = probeStalls(b.env.home, win); err != nil {
			return nil, err
		}
	}
	other, err := b.watch(ctx, &s, win, beat, r)
	all.Wait()
	var stalls []stall
	if probe != nil {
		var probeErr error
		stalls, probeErr = probe.close()
		err = errors.Join(err, probeErr)
	}
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return nil, err
	}
	if p != nil {
		r.Backlog = p.backlog
	}
	r.Operations = other.operations
	var requests []timed
	for _, w := range workers {
		w.give(r.Operations)
		requests, w.timed = append(requests, w.timed...), w.timed[:0]
	}
	if s.stalled != nil && r.Operations[opSend.String()] != nil {
		s.stalled(r, requests, stalls)
	}
	return r, nil
}

// watch opens the window after the warm-up, and closes it at the end.
func (b *bench) watch(ctx context.Context, s *phase, win *window, beat *currentSecond, r *report.Run) (*counter, error) {
	other := newCounter()
	xrpc.Sleep(ctx, s.warm)
	beat.next(0)
	if b.c.Watch != nil {
		b.c.Watch.Begin(fmt.Sprintf("%s, turn %d", s.variant, s.turn+1), s.span)
	}
	var seen *observation
	if s.limited {
		var err error
		if seen, err = b.observe(ctx, s); err != nil {
			win.opens.Store(1)
			win.closes.Store(1)
			return other, err
		}
	}
	before := b.meter.read()
	opened := time.Now()
	win.opens.Store(max(win.now(), 1))
	ended := make(chan error, 1)
	if s.storm == nil {
		ended <- nil
	} else {
		go func() { ended <- s.storm(ctx, other) }()
	}
	var err error
	storming, tick, kill := true, time.NewTicker(time.Second), b.killTimer(s)
	defer tick.Stop()
	defer kill.Stop()
	closing := time.NewTimer(s.span)
	defer closing.Stop()
	for late := false; storming || !late; {
		select {
		case <-ctx.Done():
			late = true
			if storming {
				storming, err = false, <-ended
			}
		case <-closing.C:
			late = true
		case <-b.enough:
			late = true
			if storming {
				storming, err = false, <-ended
			}
		case err = <-ended:
			ended, storming = nil, false
			late = late || err != nil
		case <-tick.C:
			b.second(s, r, beat.next(time.Since(opened)))
		case <-kill.C:
			killErr := b.kill(ctx)
			if err = errors.Join(err, killErr); killErr != nil {
				late = true
			}
			kill.Reset(b.c.KillEvery)
		}
	}
	r.Took = time.Since(opened)
	win.closes.Store(max(win.now(), 1))
	after := b.meter.read()
	r.Spent = report.Spent{
		Server: after.Server - before.Server, Database: after.Database - before.Database, Load: after.Load - before.Load,
	}
	if seen != nil {
		var seenErr error
		r.Scale, seenErr = seen.end(ctx)
		err = errors.Join(err, seenErr)
	}
	if rest := r.Took % time.Second; rest > 100*time.Millisecond {
		b.second(s, r, beat.next(r.Took))
	}
	b.sinceKill += r.Took
	return other, err
}

func (b *bench) second(s *phase, r *report.Run, second report.Second) {
	r.Seconds = append(r.Seconds, second)
	if b.c.Watch != nil && !s.quiet {
		b.c.Watch.Second(second)
	}
}

// killTimer fires when the next server is to be killed. Only time under load counts.
func (b *bench) killTimer(s *phase) *time.Timer {
	if !b.c.Faults || b.c.KillEvery <= 0 || s.mode != testbed.SendsTogether {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return t
	}
	return time.NewTimer(max(b.c.KillEvery-b.sinceKill, 0))
}

// kill kills one server, each by turns, and starts it again.
func (b *bench) kill(ctx context.Context) error {
	node := int(b.kills) % len(b.env.servers)
	b.meter.keep(b.env.servers[node].PID())
	if err := b.env.restart(ctx, node); err != nil {
		return fmt.Errorf("kill server %d: %w", node+1, err)
	}
	b.kills++
	b.sinceKill = 0
	b.say("server %d killed and started again", node+1)
	return nil
}

// closed does one operation after the other until the window closes.
func (w *worker) closed(ctx context.Context, win *window, beat *currentSecond) {
	for !win.over() && ctx.Err() == nil {
		start := win.now()
		d, ok := w.do(ctx)
		end := win.now()
		if ok && win.holds(end) {
			w.took(d, end-start, beat)
		}
	}
}

// open does what is due. A request counts if it was due in the window. Its latency counts from when
// it was due.
func (w *worker) open(ctx context.Context, win *window, beat *currentSecond, due <-chan int64) {
	for at := range due {
		if ctx.Err() != nil {
			continue
		}
		if d, ok := w.do(ctx); ok && win.holds(at) {
			done := win.now()
			w.took(d, done-at, beat)
			w.timed = append(w.timed, timed{at, done})
		}
	}
}

func (w *worker) took(d operation, ns int64, beat *currentSecond) {
	op := w.count(d)
	op.Done++
	_ = op.Latency.RecordValue(micros(ns))
	if d == opSend {
		beat.add(micros(ns))
	}
}

// give adds a worker's counts of the phase to a result and resets them.
func (w *worker) give(to map[string]*report.Operation) {
	for d, op := range w.counted {
		if op == nil || op.Done == 0 && len(op.Failed) == 0 {
			continue
		}
		name := operation(d).String()
		sum := to[name]
		if sum == nil {
			sum = &report.Operation{Latency: report.NewLatency(), Failed: map[string]int64{}}
			to[name] = sum
		}
		sum.Done += op.Done
		sum.Latency.Merge(op.Latency.Histogram)
		for failure, n := range op.Failed {
			sum.Failed[failure] += n
		}
		op.Done = 0
		op.Latency.Reset()
		clear(op.Failed)
	}
}
