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
	// admittedFor is how long a dear request counts as running. One that takes longer waits for a lock
	// or for another server. It goes on, and the next request is admitted.
	admittedFor = 25 * time.Millisecond

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

	mu      sync.Mutex       // guards what follows
	free    int              // how many more requests may run
	waiting int              // requests
	turns   []*line          // of the callers that wait: the first is next
	lines   map[string]*line // the same, by caller
}

// line is the requests of one caller that wait, never none.
type line struct {
	caller   string
	admitted []chan struct{} // of each request; closed when it may run
}

// newAdmission admits requests to a pool of so many connections.
func newAdmission(connections int, metrics *Metrics) *admission {
	return &admission{metrics: metrics, free: max(1, connections/admittedShare), lines: map[string]*line{}}
}

// enter waits until a dear request of the caller may run. Call leave when it has ended. Errors:
// limited, if too many of the caller's requests wait; busy, if too many wait in all, or the request
// has waited for maxAdmissionWait; ctx's.
func (a *admission) enter(ctx context.Context, caller string) (leave func(), err error) {
	admitted, err := a.enqueue(caller)
	if err != nil {
		return nil, err
	}
	patience := time.NewTimer(maxAdmissionWait)
	defer patience.Stop()
	select {
	case <-admitted:
		return a.leaveOnce(), nil
	case <-patience.C:
		err = a.refuse(limitTime, busy{after: time.Second})
	case <-ctx.Done():
		err = ctx.Err()
	}
	a.abandon(caller, admitted)
	return nil, err
}

// enqueue returns a channel that is closed when the caller's request may run.
func (a *admission) enqueue(caller string) (chan struct{}, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.lines[caller]
	switch {
	case of != nil && len(of.admitted) >= maxWaitingOfCaller:
		return nil, a.refuse(limitCaller, limited{after: time.Second})
	case of != nil && a.waiting >= maxWaiting, len(a.turns) >= maxWaiting: // a caller who has none waiting gets a turn
		return nil, a.refuse(limitNode, busy{after: time.Second})
	case of == nil:
		of = &line{caller: caller}
		a.lines[caller], a.turns = of, append(a.turns, of)
	}
	admitted := make(chan struct{})
	of.admitted = append(of.admitted, admitted)
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
	for a.free > 0 && len(a.turns) > 0 {
		next := a.turns[0]
		a.turns = a.turns[1:]
		close(next.admitted[0])
		if next.admitted = next.admitted[1:]; len(next.admitted) > 0 {
			a.turns = append(a.turns, next)
		} else {
			delete(a.lines, next.caller)
		}
		a.free--
		a.wait(-1)
	}
}

// abandon ends the wait of a request that was possibly admitted meanwhile.
func (a *admission) abandon(caller string, admitted chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-admitted:
		a.free++
		a.admit()
		return
	default:
	}
	a.wait(-1)
	of := a.lines[caller]
	of.admitted = slices.DeleteFunc(of.admitted, func(c chan struct{}) bool { return c == admitted })
	if len(of.admitted) == 0 {
		delete(a.lines, caller)
		a.turns = slices.DeleteFunc(a.turns, func(l *line) bool { return l == of })
	}
}

// leaveOnce returns a function that admits the next request, at its first call or after admittedFor.
func (a *admission) leaveOnce() (leave func()) {
	once := sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.free++
		a.admit()
	})
	late := time.AfterFunc(admittedFor, once)
	return func() {
		late.Stop()
		once()
	}
}
