package api

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"mlsd/internal/limit"
)

const (
	// admittedShare sets how many connections of the request pool expensive requests use at one
	// time: 1/admittedShare of them.
	admittedShare = 2
	// admittedFor is how long an expensive request counts as running. A request that takes longer
	// is late: it mostly waits for a lock. It goes on, and the next request is admitted.
	admittedFor = 25 * time.Millisecond
	// cheapConnections is how many connections of the request pool late requests must leave free
	// for cheap requests.
	cheapConnections = 2
	// maxRunningOfCaller is how many expensive requests of one caller run at one time, including
	// late ones. More of them would mostly wait for each other's locks, and each would hold a
	// database connection.
	maxRunningOfCaller = 2

	// A late request costs its caller one unit for each unitLate, but at most maxLateUnits, because
	// another caller can hold the lock that the request waits for.
	unitLate     = 10 * time.Millisecond
	maxLateUnits = 8

	maxAdmissionWait   = 5 * time.Second
	maxWaiting         = 1024 // waiting requests; as many more if their callers have no other one
	maxWaitingOfCaller = 64   // the body of each waiting request stays in memory
)

// admission lets a few expensive requests run at a time, so that processors and database
// connections stay free for cheap requests, which never wait here. methods.go says which methods
// are expensive. A proposal in clear is expensive too.
//
// Waiting callers take turns. The requests of one caller are admitted in their order.
type admission struct {
	metrics *Metrics
	now     func() time.Time // the clock by which late requests are charged
	running limit.Queue      // all running requests, including late ones
	early   limit.Queue      // running requests that are not late
}

// newAdmission returns an admission for a pool of that many connections.
func newAdmission(connections int, metrics *Metrics) *admission {
	early := max(1, connections/admittedShare)
	return &admission{
		metrics: metrics, now: time.Now,
		running: limit.Queue{
			Size: int64(max(early, connections-cheapConnections)), Share: maxRunningOfCaller,
			MaxWaiting: maxWaiting, MaxWaitingOfKey: maxWaitingOfCaller,
		},
		early: limit.Queue{Size: int64(early)},
	}
}

// expensiveRequest is one expensive request. It can run several times. A nil *expensiveRequest
// stands for a request that is not expensive. An expensiveRequest is not safe for concurrent use.
type expensiveRequest struct {
	*admission
	caller string
	runs   bool
	begun  time.Time     // start of the present run; zero if the request does not run
	took   time.Duration // duration of all earlier runs
	late   *time.Timer   // calls next when the request becomes late
	next   func()        // admits the next request; calls after the first do nothing
}

// request returns an expensive request of the caller. The request does not run yet.
func (a *admission) request(caller string) *expensiveRequest {
	return &expensiveRequest{admission: a, caller: caller}
}

// start waits until the request may run. Call end when the run has ended. Errors: limited, if too
// many of the caller's requests wait; busy, if too many requests wait in all, or if this request
// has waited for maxAdmissionWait; the error of ctx.
func (r *expensiveRequest) start(ctx context.Context) error {
	r.metrics.expensiveWaiting.Inc()
	err := r.acquire(ctx)
	r.metrics.expensiveWaiting.Dec()
	if err != nil {
		return r.refusal(ctx, err)
	}
	r.runs, r.begun = true, r.now()
	r.next = sync.OnceFunc(func() { r.early.Release(r.caller, 1) })
	r.late = time.AfterFunc(admittedFor, r.next)
	return nil
}

func (r *expensiveRequest) acquire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxAdmissionWait)
	defer cancel()
	if err := r.running.Acquire(ctx, r.caller, 1); err != nil {
		return err
	}
	err := r.early.Acquire(ctx, r.caller, 1)
	if err != nil {
		r.running.Release(r.caller, 1)
	}
	return err
}

// refusal returns the answer to a request that is not admitted, and counts the refusal unless ctx
// has ended.
func (a *admission) refusal(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	reached, r := limitNode, (*limit.RefusedError)(nil)
	switch errors.As(err, &r); {
	case r.Err != nil:
		reached, err = limitTime, busy{after: time.Second}
	case r.Own:
		reached, err = limitCaller, limited{after: time.Second}
	default:
		err = busy{after: time.Second}
	}
	a.metrics.expensiveRefused.WithLabelValues(reached).Inc()
	return err
}

// end ends the present run of the request. If the request does not run, end does nothing.
func (r *expensiveRequest) end() {
	if r == nil || !r.runs {
		return
	}
	r.runs = false
	r.took += r.now().Sub(r.begun)
	r.late.Stop()
	r.next()
	r.running.Release(r.caller, 1)
}

// units returns what the request costs because it was late, in units of the rate limit.
func (r *expensiveRequest) units() int {
	return min(int(max(0, r.took-admittedFor)/unitLate), maxLateUnits)
}

// beginExpensive starts an expensive request, and waits until the request may run. Call
// endExpensive when the request has ended. Errors: the errors of start.
func (c *call) beginExpensive(a *admission) error {
	c.expensive = a.request(c.caller.String())
	return c.expensive.start(c.ctx)
}

// outside calls f, which waits for something outside the database. Meanwhile the request holds no
// database connection, and an expensive request does not count as running. Errors: the errors of f
// and of start.
func (c *call) outside(f func() error) error {
	c.expensive.end()
	if err := f(); err != nil || c.expensive == nil {
		return err
	}
	return c.expensive.start(c.ctx)
}

// endExpensive ends an expensive request. The caller pays for the time during which the request was
// late.
func (c *call) endExpensive() {
	c.expensive.end()
	c.spend(c.expensive.units())
}

// The rate at which streams open is limited. When all clients reconnect at once, the limit keeps
// processors free for writes.
const (
	openingsAtOnce = 16                    // per processor
	openingPlace   = 40 * time.Millisecond // how long an opening keeps its place: 400 openings a second per processor
	longestOpening = 10 * time.Second      // the longest that a client waits for a place

	// maxOpeningsOfDID is how many openings of one DID may wait at one time.
	maxOpeningsOfDID = 16
	// openingsShare limits the waiting openings of one address to 1/openingsShare of all waiting
	// openings.
	openingsShare = 4
	// hangUpCost is what a caller pays, in units, if it gives up its place in the queue.
	hangUpCost = 10
)

// openings are the streams that are about to begin. Their callers are authenticated, and take
// turns: a caller with many openings does not delay a caller with one opening.
type openings struct {
	places    limit.Queue // each opening keeps a place for openingPlace
	addresses limit.Queue // places in the queue, by address
}

func newOpenings() *openings {
	places := openingsAtOnce * runtime.GOMAXPROCS(0)
	waiting := places * int(longestOpening/openingPlace)
	return &openings{
		// Half, because MaxWaiting lets as many more openings wait if their callers have no other
		// waiting opening.
		places:    limit.Queue{Size: int64(places), MaxWaiting: waiting / 2, MaxWaitingOfKey: maxOpeningsOfDID},
		addresses: limit.Queue{Share: int64(waiting / openingsShare)},
	}
}

// wait waits until another stream may be opened. Errors: limited, if too many openings of the
// caller or of its address wait already; busy, if too many wait in all, or if this opening has
// waited too long; the error of ctx.
func (o *openings) wait(ctx context.Context, did, address string) error {
	if !o.places.TryAcquire(did, 1) {
		if !o.addresses.TryAcquire(address, 1) {
			return limited{after: time.Second}
		}
		defer o.addresses.Release(address, 1)
		longest, cancel := context.WithTimeout(ctx, longestOpening)
		defer cancel()
		err := o.places.Acquire(longest, did, 1)
		r, _ := find[*limit.RefusedError](err)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case r.Own && r.Err == nil:
			return limited{after: time.Second}
		default:
			return busy{after: longestOpening}
		}
	}
	time.AfterFunc(openingPlace, func() { o.places.Release(did, 1) })
	return nil
}

// opens waits until the caller may open a stream. A caller that hangs up while it waits pays for
// its place.
func (h *handlers) opens(c *call) error {
	err := h.openings.wait(c.ctx, c.caller.String(), c.address)
	if errors.Is(err, context.Canceled) {
		c.spend(hangUpCost)
	}
	return err
}
