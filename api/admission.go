package api

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// admittedShare is the part of the database's connections for requests that dear ones take: one
	// in so many.
	admittedShare = 2
	// admittedFor is how long a dear request is one of these. One that takes longer is late: it mostly
	// waits for a lock. It goes on, and the next request is admitted.
	admittedFor = 25 * time.Millisecond
	// cheapConnections are the database's connections for requests that late ones leave to cheap ones.
	cheapConnections = 2
	// maxRunningOfCaller is how many dear requests of a caller run, late ones included. More would
	// mostly wait for each other's locks, each with a connection of the database.
	maxRunningOfCaller = 2

	// unitLate is how much time of a late request costs a unit, and maxLateUnits what it costs at most:
	// the lock that it waits for can be another caller's.
	unitLate     = 10 * time.Millisecond
	maxLateUnits = 8

	maxAdmissionWait   = 5 * time.Second
	maxWaiting         = 1024 // dear requests that wait, and as many more of callers who have none
	maxWaitingOfCaller = 64   // each holds the memory of its body
)

// admission lets dear requests run a few at a time. So processors and connections of the database
// stay free for cheap ones, which never wait here. Which methods are dear stands in methods.go.
//
// The callers that wait take turns. The requests of one caller are admitted in their order.
type admission struct {
	metrics *Metrics
	now     func() time.Time // charges late requests

	mu      sync.Mutex       // guards what follows
	free    int              // how many more requests may run that are not late
	slots   int              // how many more requests may run, late ones included
	waiting int              // requests
	turns   []*line          // of the callers that wait and may run one more: the first is next
	lines   map[string]*line // of the callers that wait or run, by caller
}

// line is the dear requests of one caller, never none.
type line struct {
	caller   string
	running  int             // late ones included
	admitted []chan struct{} // of each request that waits; closed when it may run
}

// newAdmission admits requests to a pool of so many connections.
func newAdmission(connections int, metrics *Metrics) *admission {
	free := max(1, connections/admittedShare)
	return &admission{
		metrics: metrics, now: time.Now, free: free, slots: max(free, connections-cheapConnections), lines: map[string]*line{},
	}
}

// dearRequest is a request that runs from enter to leave, once or several times. The nil
// *dearRequest is a request that is not dear. It is not safe for concurrent use.
type dearRequest struct {
	*admission
	caller  string
	running bool
	begun   time.Time     // if running
	took    time.Duration // while it ran before
	late    *time.Timer   // calls next
	next    func()        // lets the next request run, once
}

// request returns a dear request of the caller, which does not run yet.
func (a *admission) request(caller string) *dearRequest {
	return &dearRequest{admission: a, caller: caller}
}

// enter waits until the request may run. Call leave when it has ended. Errors: limited, if too many
// of the caller's requests wait; busy, if too many wait in all, or the request has waited for
// maxAdmissionWait; ctx's.
func (r *dearRequest) enter(ctx context.Context) error {
	admitted, err := r.enqueue(r.caller)
	if err != nil {
		return err
	}
	patience := time.NewTimer(maxAdmissionWait)
	defer patience.Stop()
	select {
	case <-admitted:
		r.begin()
		return nil
	case <-patience.C:
		err = r.refuse(limitTime, busy{after: time.Second})
	case <-ctx.Done():
		err = ctx.Err()
	}
	r.abandon(r.caller, admitted)
	return err
}

// begin admits the next request after admittedFor.
func (r *dearRequest) begin() {
	r.running, r.begun = true, r.now()
	r.next = sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.free++
		r.admit()
	})
	r.late = time.AfterFunc(admittedFor, r.next)
}

// leave ends the running of the request. It does nothing if the request does not run.
func (r *dearRequest) leave() {
	if r == nil || !r.running {
		return
	}
	r.running = false
	r.took += r.now().Sub(r.begun)
	r.late.Stop()
	r.next()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(r.caller)
}

// units is what the request costs because it was late.
func (r *dearRequest) units() int {
	return min(int(max(0, r.took-admittedFor)/unitLate), maxLateUnits)
}

// outside calls f, which waits for something else than the database. The request holds no connection
// of it, and does not run meanwhile if it is dear. Errors: f's; those of enter.
func (c *call) outside(f func() error) error {
	c.dear.leave()
	if err := f(); err != nil || c.dear == nil {
		return err
	}
	return c.dear.enter(c.ctx)
}

// leaveDear ends a dear request. The caller pays for the time in which it was late.
func (c *call) leaveDear() {
	c.dear.leave()
	c.spend(c.dear.units())
}

// enqueue returns a channel that is closed when the caller's request may run.
func (a *admission) enqueue(caller string) (chan struct{}, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.lines[caller]
	first := of == nil || len(of.admitted) == 0
	switch {
	case !first && len(of.admitted) >= maxWaitingOfCaller:
		return nil, a.refuse(limitCaller, limited{after: time.Second})
	case !first && a.waiting >= maxWaiting, len(a.turns) >= maxWaiting: // a caller who has none waiting gets a turn
		return nil, a.refuse(limitNode, busy{after: time.Second})
	case of == nil:
		of = &line{caller: caller}
		a.lines[caller] = of
	}
	admitted := make(chan struct{})
	of.admitted = append(of.admitted, admitted)
	if first && of.running < maxRunningOfCaller {
		a.turns = append(a.turns, of)
	}
	a.wait(1)
	a.admit()
	return admitted, nil
}

// refuse counts a refusal because of a limit, and returns its error.
func (a *admission) refuse(limit string, err error) error {
	a.metrics.dearRefused.WithLabelValues(limit).Inc()
	return err
}

// wait changes how many requests wait. The caller holds mu.
func (a *admission) wait(more int) {
	a.waiting += more
	a.metrics.dearWaiting.Set(float64(a.waiting))
}

// admit admits requests while more may run. The caller holds mu.
func (a *admission) admit() {
	for a.free > 0 && a.slots > 0 && len(a.turns) > 0 {
		next := a.turns[0]
		a.turns = a.turns[1:]
		close(next.admitted[0])
		next.admitted = next.admitted[1:]
		next.running++
		if len(next.admitted) > 0 && next.running < maxRunningOfCaller {
			a.turns = append(a.turns, next)
		}
		a.free--
		a.slots--
		a.wait(-1)
	}
}

// end ends the running of a request of the caller, late or not. The caller holds mu.
func (a *admission) end(caller string) {
	of := a.lines[caller]
	if of.running == maxRunningOfCaller && len(of.admitted) > 0 {
		a.turns = append(a.turns, of)
	}
	of.running--
	a.slots++
	a.forget(of)
	a.admit()
}

// forget forgets a line that has no requests. The caller holds mu.
func (a *admission) forget(of *line) {
	if of.running == 0 && len(of.admitted) == 0 {
		delete(a.lines, of.caller)
	}
}

// abandon ends the wait of a request that was possibly admitted meanwhile.
func (a *admission) abandon(caller string, admitted chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-admitted:
		a.free++
		a.end(caller)
		return
	default:
	}
	a.wait(-1)
	of := a.lines[caller]
	of.admitted = slices.DeleteFunc(of.admitted, func(c chan struct{}) bool { return c == admitted })
	if len(of.admitted) == 0 {
		a.turns = slices.DeleteFunc(a.turns, func(l *line) bool { return l == of })
		a.forget(of)
	}
}
