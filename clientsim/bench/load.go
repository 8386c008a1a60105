package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/clientsim/bench/report"
	"mlsd/clientsim/load"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// phase is one piece of load that is measured.
type phase struct {
	variant  string
	against  string // the variant that this phase is compared with
	turn     int
	binary   int     // index of the binary that the servers run
	auth     string  // how senders authenticate; "" means service-auth tokens
	rate     float64 // requests begun per second; 0 means as many as possible
	inFlight int     // unanswered requests at any time; 0 means the configured number
	span     time.Duration
	warm     time.Duration // warm-up before the phase, not counted; 0 means the configured time
	pages    bool          // workers read and do not send
	// storm runs during the phase, and the phase lasts until storm ends. storm counts its own
	// operations.
	storm       stormFunc
	subscribers int
	audience    *audience // records when the events arrive; nil means that nobody listens
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
func (b *bench) run(ctx context.Context, s phase) *report.Run {
	s.span, s.inFlight, s.warm = cmp.Or(s.span, b.c.For), cmp.Or(s.inFlight, b.c.InFlight), cmp.Or(s.warm, b.c.Warm)
	if b.env.use(ctx, s.binary) {
		s.warm = max(s.warm, b.c.WarmStart)
		b.closeWorkers()
	}
	if s.rate == 0 && s.auth != AuthSession && b.rates[s.variant] == 0 { // shows how many tokens the phase needs
		probe := s
		probe.span = probeFor
		b.learn(&s, b.play(ctx, probe))
	}
	r := b.play(ctx, s)
	b.learn(&s, r)
	if len(r.Operations) == 0 { // enough messages came before the window opened
		return r
	}
	b.report.Runs = append(b.report.Runs, *r)
	b.say("%s, turn %d: %s", s.variant, s.turn+1, r.Text())
	if late, sent := b.late(), r.Operations[opSend]; sent != nil && late > sent.Done/50 {
		b.note("%s, turn %d: %d tokens were signed under load", s.variant, s.turn, late)
	}
	return r
}

// probeFor is the length of a variant's first run, which shows how fast the variant is.
const probeFor = 500 * time.Millisecond

// play runs a phase and returns its result.
func (b *bench) play(ctx context.Context, s phase) *report.Run {
	b.prepare(ctx, &s)
	runtime.GC() // the collector runs now, and not during the measurement
	win := &window{counter: load.NewCounter()}
	r := &report.Run{Variant: s.variant, Against: s.against, Turn: s.turn, Load: report.Load{
		InFlight: s.inFlight, Rate: s.rate, Servers: len(b.env.servers), Convos: len(b.convos.convos),
		Members: b.c.Members, BodyBytes: b.c.Body, Faults: b.c.Faults, Senders: len(b.senders), Subscribers: s.subscribers,
	}}
	if s.audience != nil {
		s.audience.win.Store(win)
		r.Per = opEvent
	}
	driving, stop := context.WithCancel(ctx)
	var driver sync.WaitGroup
	driver.Go(func() {
		d := load.Driver{Rate: s.rate, Lanes: s.inFlight, Exact: true, Count: win.count}
		d.Run(driving, func(one load.Request) { b.workers[one.Lane].do(ctx, one) })
	})
	err := b.watch(ctx, &s, win, r)
	stop()
	driver.Wait()
	Check(errors.Join(err, context.Cause(ctx)))
	r.Operations = win.counter.Operations()
	return r
}

// watch opens the window after the warm-up, and closes it at the end.
func (b *bench) watch(ctx context.Context, s *phase, win *window, r *report.Run) error {
	xrpc.Sleep(ctx, s.warm)
	before := b.meter.read()
	opened := time.Now()
	win.opens.Store(&opened)
	storm := make(chan error, 1)
	if s.storm == nil {
		storm <- nil
	} else {
		go func() { storm <- s.storm(ctx, win.counter) }()
	}
	err := b.await(ctx, s, storm)
	closed := time.Now()
	win.closes.Store(&closed)
	r.Took = closed.Sub(opened)
	after := b.meter.read()
	r.Spent = report.Spent{
		Server: after.Server - before.Server, Database: after.Database - before.Database, Load: after.Load - before.Load,
	}
	b.sinceKill += r.Took
	return err
}

// await kills servers until the phase is over and its storm has ended.
func (b *bench) await(ctx context.Context, s *phase, storm <-chan error) error {
	closing, kill := time.NewTimer(s.span), b.killTimer()
	defer closing.Stop()
	defer kill.Stop()
	for {
		select {
		case <-ctx.Done():
			return <-storm
		case <-b.enough:
			return <-storm
		case <-closing.C:
			return <-storm
		case <-kill.C:
			if err := b.kill(ctx); err != nil {
				return errors.Join(err, <-storm)
			}
			kill.Reset(b.c.KillEvery)
		}
	}
}

// killTimer returns a timer that fires when the next server is to be killed. Only time under load
// counts.
func (b *bench) killTimer() *time.Timer {
	if !b.c.Faults || b.c.KillEvery <= 0 {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return t
	}
	return time.NewTimer(max(b.c.KillEvery-b.sinceKill, 0))
}

// kill kills a server and starts it again. The servers take turns.
func (b *bench) kill(ctx context.Context) error {
	node := int(b.kills) % len(b.env.servers)
	server := b.env.servers[node]
	b.meter.keep(server.PID())
	if err := Attempt(func() {
		Check(server.Kill())
		Check(server.Start(ctx, b.env.settings(ctx, b.env.running)))
	}); err != nil {
		return fmt.Errorf("kill server %d: %w", node+1, err)
	}
	b.kills++
	b.sinceKill = 0
	b.say("server %d killed and started again", node+1)
	return nil
}
