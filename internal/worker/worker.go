// Package worker runs background work: the same function again and again, until the server stops.
package worker

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

const (
	// shortestLimit is the time limit of a round if the interval is shorter. Otherwise the limit is
	// the interval. One of our statements may take 15 seconds. A connection that has become silent
	// shows no error, so it can stop the worker for this long.
	shortestLimit = 20 * time.Second
	// lastLimit is the time limit of the call given to AtEnd.
	lastLimit = 5 * time.Second
)

// Worker calls one function in the background. Make one with Every.
type Worker struct {
	name     string
	interval time.Duration
	log      *slog.Logger
	runOnce  func(context.Context) error

	limit time.Duration // time limit of a round
	late  bool          // the first round begins after one interval
	clock Clock
	wake  Trigger       // nil means none
	delay time.Duration // from a wake-up to the round
	atEnd func(context.Context) error
}

// Option changes what Every does.
type Option func(*Worker)

// Limit sets the time limit of a round. A worker needs such a limit if other nodes consider its
// node dead when the worker stops.
func Limit(limit time.Duration) Option { return func(w *Worker) { w.limit = limit } }

// Clock gives the time at which work is repeated. The zero Clock is the system's clock.
type Clock struct {
	Now    func() time.Time
	Ticker func(every time.Duration) (ticks <-chan time.Time, stop func())
}

// System returns c, or the system's clock if c is the zero Clock.
func (c Clock) System() Clock {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Ticker == nil {
		c.Ticker = func(every time.Duration) (<-chan time.Time, func()) {
			t := time.NewTicker(every)
			return t.C, t.Stop
		}
	}
	return c
}

// By makes a worker use a clock.
func By(clock Clock) Option { return func(w *Worker) { w.clock = clock } }

// AfterInterval delays the first round by one interval. Without this option, the first round begins
// at once.
func AfterInterval() Option { return func(w *Worker) { w.late = true } }

// Trigger wakes its receiver. If it is sent several times before it is received, it is received
// once.
type Trigger chan struct{}

// NewTrigger returns a trigger that nobody has sent yet.
func NewTrigger() Trigger { return make(Trigger, 1) }

// Send wakes the receiver. It does not block. Any goroutine can call it.
func (s Trigger) Send() {
	select {
	case s <- struct{}{}:
	default: // the last one has not been received yet
	}
}

// Pause waits for d or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Wake makes a round begin after each signal, in addition to the rounds of the interval. The round
// begins after delay, so that one round can serve several signals. The ticks of the interval stay
// the same.
func Wake(wake Trigger, delay time.Duration) Option {
	return func(w *Worker) { w.wake, w.delay = wake, delay }
}

// AtEnd makes the worker call last once, after the last round. The context of last ends after 5
// seconds.
func AtEnd(last func(context.Context) error) Option { return func(w *Worker) { w.atEnd = last } }

// Every returns a worker that calls runOnce at once and then once in each interval. The log names
// the worker: "the NAME failed".
//
// Rounds do not overlap. If a round takes longer than the interval, the next round begins right
// after it.
//
// runOnce must be bounded: it works in batches with a limit of rows. Each batch is a transaction,
// so runOnce can end between two batches. Its context ends with the worker's context, and after the
// longer of the interval and 20 seconds, or after Limit. The next round then does the rest.
//
// Errors are logged. A panic is not recovered.
func Every(name string, interval time.Duration, log *slog.Logger, runOnce func(context.Context) error,
	options ...Option) *Worker {
	w := &Worker{name: name, interval: interval, limit: max(interval, shortestLimit), log: log, runOnce: runOnce}
	for _, o := range options {
		o(w)
	}
	return w
}

// Run works until ctx ends. It returns when the last round is over.
func (w *Worker) Run(ctx context.Context) {
	tick, stop := w.clock.System().Ticker(w.interval)
	defer stop()
	due := !w.late || w.pause(ctx, tick)
	for due {
		w.round(ctx)
		due = w.pause(ctx, tick)
	}
	if w.atEnd == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLimit)
	defer cancel()
	if err := w.atEnd(ctx); err != nil {
		w.log.ErrorContext(ctx, "the "+w.name+" failed at its end", "error", err)
	}
}

// pause waits until the next round is due. It returns false if ctx has ended.
func (w *Worker) pause(ctx context.Context, tick <-chan time.Time) bool {
	select {
	case <-ctx.Done():
	case <-tick:
	case <-w.wake:
		Pause(ctx, w.delay)
	}
	return ctx.Err() == nil
}

// round calls runOnce with its time limit and logs its error, unless the worker itself was stopped.
func (w *Worker) round(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	err := w.runOnce(limited)
	switch {
	case err == nil, ctx.Err() != nil:
	case errors.Is(limited.Err(), context.DeadlineExceeded):
		w.log.WarnContext(ctx, "the "+w.name+" did not end in time and goes on in its next round", "error", err)
	default:
		w.log.ErrorContext(ctx, "the "+w.name+" failed", "error", err)
	}
}
