package bench

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/clientsim/load"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// phase is one piece of load that is measured.
type phase struct {
	variant  string
	turn     int
	at       place
	auth     string   // how senders authenticate; "" means service-auth tokens
	rate     float64  // requests begun per second; 0 means as many as possible
	inFlight int      // unanswered requests at any time
	messages int64    // acknowledged messages that end the phase; 0 means that Config.For ends it
	drafts   []*draft // what workers send, or ask about; nil means the drafts of all convos
	ask      *reading // workers read this and do not send; nil means that they send
	main     string   // operation by which the processor time is divided; "" means the workers' own
	// prepare prepares a storm. The storm runs during the phase, and ends it. It counts its own
	// operations.
	prepare  func() stormFunc
	audience *audience // records when the events arrive; nil means that nobody listens
}

// window is the time in which requests count. A request counts if it is due in the window.
type window struct {
	counter       *load.Counter
	opens, closes atomic.Pointer[time.Time] // nil means not yet
}

// count returns the counter for a request that is due at a time, or nil if the request does not
// count.
func (w *window) count(due time.Time) *load.Counter {
	opens, closes := w.opens.Load(), w.closes.Load()
	if opens == nil || due.Before(*opens) || closes != nil && !due.Before(*closes) {
		return nil
	}
	return w.counter
}

// run runs a phase and adds its result to the report.
func (b *bench) run(ctx context.Context, s phase) {
	r := b.play(ctx, s)
	b.say("%s, turn %d of %d: %s", s.variant, s.turn+1, b.c.Turns, r.text())
	late := int64(0)
	for _, sender := range b.senders {
		late += sender.late.Swap(0)
	}
	if op := r.Operations[opSend]; op != nil {
		b.fastest = max(b.fastest, float64(op.Done)/r.Took.Seconds())
		if late > op.Done/50 {
			b.note("%s, turn %d: %d tokens were signed under load", s.variant, s.turn+1, late)
		}
	}
	if len(r.Operations) > 0 { // else enough messages came before the window opened
		b.report.Turns = append(b.report.Turns, *r)
	}
}

// use makes the servers run as at says, and the workers connect to them.
func (b *bench) use(ctx context.Context, at place) {
	if b.env.use(ctx, at) {
		for i, w := range b.workers {
			w.aim(b.env.addr(i))
		}
	}
}

// play runs a phase and returns its result.
func (b *bench) play(ctx context.Context, s phase) *Turn {
	b.use(ctx, s.at)
	for len(b.workers) < s.inFlight {
		b.workers = append(b.workers, newWorker(b, len(b.workers)))
	}
	var storm stormFunc
	if s.prepare != nil {
		storm = s.prepare()
	}
	b.authenticate(ctx, &s)
	b.phase, b.enough = &s, make(chan struct{})
	b.acknowledged.Store(0)
	runtime.GC() // the collector runs now, and not during the measurement
	win := &window{counter: load.NewCounter()}
	r := &Turn{Variant: s.variant, Index: s.turn, InFlight: s.inFlight, Rate: s.rate, Servers: s.at.nodes, Main: opSend}
	switch {
	case s.audience != nil:
		s.audience.win.Store(win)
		r.Main = opEvent
	case s.main != "":
		r.Main = s.main
	case s.ask != nil:
		r.Main = s.ask.operation
	}
	driving, stop := context.WithCancel(ctx)
	var driver sync.WaitGroup
	driver.Go(func() {
		d := load.Driver{Rate: s.rate, Lanes: s.inFlight, Exact: true, Count: win.count}
		d.Run(driving, func(one load.Request) { b.workers[one.Lane].do(ctx, one) })
	})
	err := b.watch(ctx, storm, win, r)
	stop()
	driver.Wait()
	Check(errors.Join(err, context.Cause(ctx)))
	r.Operations = win.counter.Operations()
	return r
}

// watch opens the window after the warm-up, and closes it at the end.
func (b *bench) watch(ctx context.Context, storm stormFunc, win *window, r *Turn) error {
	xrpc.Sleep(ctx, b.c.Warm)
	before, opened := b.env.spent(), time.Now()
	win.opens.Store(&opened)
	err := b.await(ctx, storm, win.counter)
	closed := time.Now()
	win.closes.Store(&closed)
	after := b.env.spent()
	r.Took = closed.Sub(opened)
	r.Spent = Spent{after.Server - before.Server, after.Database - before.Database, after.Load - before.Load}
	b.sinceKill += r.Took
	return err
}

// await kills servers until the phase is over.
func (b *bench) await(ctx context.Context, storm stormFunc, count *load.Counter) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	over := make(chan error, 1)
	go func() { over <- b.untilOver(ctx, storm, count) }()
	kill := time.NewTimer(max(b.c.KillEvery-b.sinceKill, 0))
	defer kill.Stop()
	if !b.c.Faults || b.c.KillEvery <= 0 {
		kill.Stop()
	}
	for {
		select {
		case err := <-over:
			return err
		case <-kill.C:
			node := int(b.kills) % len(b.env.Nodes) // the servers take turns
			if err := b.env.kill(ctx, node); err != nil {
				stop()
				return errors.Join(err, <-over)
			}
			b.say("server %d killed and started again", node+1)
			b.kills++
			b.sinceKill = 0
			kill.Reset(b.c.KillEvery)
		}
	}
}

// untilOver returns when the phase is over.
func (b *bench) untilOver(ctx context.Context, storm stormFunc, count *load.Counter) error {
	switch {
	case storm != nil:
		return storm(ctx, count)
	case b.phase.messages == 0:
		xrpc.Sleep(ctx, b.c.For)
	default:
		select {
		case <-b.enough:
		case <-ctx.Done():
		}
	}
	return nil
}
