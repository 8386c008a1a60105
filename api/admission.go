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
	// admittedShare is the part of the database's connections for requests that expensive ones
	// take: one in so many.
	admittedShare = 2
	// admittedFor is how long an expensive request is one of these. One that takes longer is late:
	// it mostly waits for a lock. It goes on, and the next request is admitted.
	admittedFor = 25 * time.Millisecond
	// cheapConnections are the database's connections for requests that late ones leave to cheap
	// ones.
	cheapConnections = 2
	// maxRunningOfCaller is how many expensive requests of a caller run, late ones included. More
	// would mostly wait for each other's locks, each with a connection of the database.
	maxRunningOfCaller = 2

	// unitLate is how much time of a late request costs a unit, and maxLateUnits what it costs at
	// most: the lock that it waits for can be another caller's.
	unitLate     = 10 * time.Millisecond
	maxLateUnits = 8

	maxAdmissionWait   = 5 * time.Second
	maxWaiting         = 1024 // expensive requests that wait, and as many more of callers who have none
	maxWaitingOfCaller = 64   // each holds the memory of its body
)

// admission lets expensive requests run a few at a time, so that processors and connections of the
// database stay free for cheap ones, which never wait here. methods.go says which methods are
// expensive. A proposal of an external sender is expensive too.
//
// The callers that wait take turns. The requests of one caller are admitted in their order.
type admission struct {
	metrics *Metrics
	now     func() time.Time // charges late requests
	running limit.Queue      // of requests, late ones included
	early   limit.Queue      // of those that run and are not late
}

// newAdmission admits requests to a pool of so many connections.
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

// expensiveRequest is a request that runs from start to end, once or several times. The nil
// *expensiveRequest is a request that is not expensive. It is not safe for concurrent use.
type expensiveRequest struct {
	*admission
	caller string
	runs   bool
	begun  time.Time     // if it runs
	took   time.Duration // while it ran before
	late   *time.Timer   // calls next
	next   func()        // lets the next request run, once
}

// request returns an expensive request of the caller, which does not run yet.
func (a *admission) request(caller string) *expensiveRequest {
	return &expensiveRequest{admission: a, caller: caller}
}

// start waits until the request may run. Call end when it has ended. Errors: limited, if too many
// of the caller's requests wait; busy, if too many wait in all, or the request has waited for
// maxAdmissionWait; ctx's.
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

// refusal is the answer to a request that is not admitted. It is counted, unless ctx has ended.
func (a *admission) refusal(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	reached, r := limitNode, (*limit.Refused)(nil)
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

// end ends the running of the request. It does nothing if the request does not run.
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

// units is what the request costs because it was late.
func (r *expensiveRequest) units() int {
	return min(int(max(0, r.took-admittedFor)/unitLate), maxLateUnits)
}

// beginExpensive begins an expensive request, and waits until it may run. Call endExpensive at its
// end. Errors: those of start.
func (c *call) beginExpensive(a *admission) error {
	c.expensive = a.request(c.caller.String())
	return c.expensive.start(c.ctx)
}

// outside calls f, which waits for something else than the database. The request holds no
// connection of it, and does not run meanwhile if it is expensive. Errors: f's; those of start.
func (c *call) outside(f func() error) error {
	c.expensive.end()
	if err := f(); err != nil || c.expensive == nil {
		return err
	}
	return c.expensive.start(c.ctx)
}

// endExpensive ends an expensive request. The caller pays for the time in which it was late.
func (c *call) endExpensive() {
	c.expensive.end()
	c.spend(c.expensive.units())
}

// Streams are opened at a limited rate. When all clients reconnect at once, the limit keeps the
// processors free for those who write.
const (
	openingsAtOnce = 16                    // for each processor
	openingPlace   = 40 * time.Millisecond // how long an opening keeps its place: 400 a second for each processor
	longestOpening = 10 * time.Second      // a client does not wait longer

	// maxOpeningsOfDID is how many openings of one DID wait.
	maxOpeningsOfDID = 16
	// openingsShare is the part of those who wait that can be of one address: one in so many.
	openingsShare = 4
	// hangUpCost is what a caller pays for a place in the queue that it gives up, in units.
	hangUpCost = 10
)

// openings are the streams that are about to begin. Their callers are known, and take turns: one
// with many openings does not delay another with one (H5).
type openings struct {
	places    limit.Queue // an opening has one for openingPlace
	addresses limit.Queue // of those that wait
}

func newOpenings() *openings {
	places := openingsAtOnce * runtime.GOMAXPROCS(0)
	waiting := places * int(longestOpening/openingPlace)
	return &openings{
		// Half, because MaxWaiting lets as many more wait whose callers have none waiting.
		places:    limit.Queue{Size: int64(places), MaxWaiting: waiting / 2, MaxWaitingOfKey: maxOpeningsOfDID},
		addresses: limit.Queue{Share: int64(waiting / openingsShare)},
	}
}

// wait waits until another stream may be opened. Errors: limited, if too many of the caller or of
// its address wait already; busy, if too many wait in all or this one has waited too long; ctx's.
func (o *openings) wait(ctx context.Context, did, address string) error {
	if !o.places.TryAcquire(did, 1) {
		if !o.addresses.TryAcquire(address, 1) {
			return limited{after: time.Second}
		}
		defer o.addresses.Release(address, 1)
		longest, cancel := context.WithTimeout(ctx, longestOpening)
		defer cancel()
		err := o.places.Acquire(longest, did, 1)
		r, _ := find[*limit.Refused](err)
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

// opens waits until the caller may open a stream. A caller that hangs up meanwhile pays for its
// place.
func (h *handlers) opens(c *call) error {
	err := h.openings.wait(c.ctx, c.caller.String(), c.address)
	if errors.Is(err, context.Canceled) {
		c.spend(hangUpCost)
	}
	return err
}
