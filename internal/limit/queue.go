package limit

import (
	"context"
	"slices"
	"sync"
)

// Queue shares out units, such as places or bytes: Size units to all keys together, and Share units
// to one key. Requests that get no units at once wait. Waiting keys take turns, and the requests of
// one key keep their order. Requests for few units do not overtake a request for many, unless its
// own key has too many units; then requests of other keys may overtake it.
//
// Set the fields before the first use. Methods are safe for concurrent use.
type Queue struct {
	Size  int64 // 0 means any number
	Share int64 // 0 means as Size
	// MaxWaiting is how many requests may wait. When so many wait, a request may still wait if its
	// key has no waiting request, until MaxWaiting keys wait for units of other keys.
	// MaxWaitingOfKey is how many requests of one key may wait. In both, 0 means any number.
	MaxWaiting, MaxWaitingOfKey int

	mu      sync.Mutex // guards the fields below
	used    int64
	waiting int              // number of waiting requests
	turns   []*line          // lines of keys whose next request waits only for other keys; the first is next
	lines   map[string]*line // lines of keys that use units or wait, by key
}

// line is the requests of one key.
type line struct {
	key     string
	used    int64
	waiting []*request // in the order of arrival
	turn    bool       // the line is in turns
}

// request is a waiting request.
type request struct {
	units   int64
	granted chan struct{} // closed when the request has its units
}

// RefusedError is the error of a request that gets no units.
type RefusedError struct {
	// Own says that the key itself uses too much, or has too many waiting requests. If Own is
	// false, all keys together use too much.
	Own bool
	// Err is the context's error. It is nil if the request did not wait.
	Err error
}

func (r *RefusedError) Error() string {
	if r.Err != nil {
		return "waited too long: " + r.Err.Error()
	}
	return "it may not wait"
}

// Unwrap returns the context's error.
func (r *RefusedError) Unwrap() error { return r.Err }

// TryAcquire takes units if it need not wait for them. The caller must call Release later.
func (q *Queue) TryAcquire(key string, units int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.take(key, units)
}

// Acquire takes units, and waits for them until ctx ends. The caller must call Release later. The
// error is *[RefusedError].
func (q *Queue) Acquire(ctx context.Context, key string, units int64) error {
	w, err := q.enqueue(key, units)
	if w == nil {
		return err
	}
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		return q.abandon(ctx, key, w)
	}
}

// AcquireOfOthers is Acquire for a request that does not wait for other requests of its key.
func (q *Queue) AcquireOfOthers(ctx context.Context, key string, units int64) error {
	q.mu.Lock()
	l := q.lines[key]
	own := l != nil && (len(l.waiting) > 0 || !q.fits(l, units))
	q.mu.Unlock()
	if own {
		return &RefusedError{Own: true}
	}
	return q.Acquire(ctx, key, units)
}

// Release returns units.
func (q *Queue) Release(key string, units int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[key]
	l.used -= units
	q.used -= units
	q.next(l)
	q.grant()
}

// Missing returns how many units the next request lacks that waits for units of other keys. It
// returns 0 if no request waits.
func (q *Queue) Missing() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turns) == 0 {
		return 0
	}
	return q.used + q.turns[0].waiting[0].units - q.Size
}

// Used returns how many units are taken, and how many requests wait.
func (q *Queue) Used() (units int64, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used, q.waiting
}

// UsedBy returns how many units a key uses.
func (q *Queue) UsedBy(key string) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[key]; l != nil {
		return l.used
	}
	return 0
}

// take takes free units if no request is before this one. The caller holds mu.
func (q *Queue) take(key string, units int64) bool {
	l := q.lines[key]
	switch {
	case q.Size > 0 && (len(q.turns) > 0 || q.used+units > q.Size):
		return false
	case l != nil && (len(l.waiting) > 0 || !q.fits(l, units)):
		return false
	case l == nil:
		l = q.begin(key)
	}
	l.used += units
	q.used += units
	return true
}

// begin makes the line of a key. The caller holds mu.
func (q *Queue) begin(key string) *line {
	if q.lines == nil {
		q.lines = map[string]*line{}
	}
	l := &line{key: key}
	q.lines[key] = l
	return l
}

// fits reports whether a key may have more units. The caller holds mu.
func (q *Queue) fits(l *line, units int64) bool { return q.Share == 0 || l.used+units <= q.Share }

// enqueue takes units, or returns a request that waits for them.
func (q *Queue) enqueue(key string, units int64) (*request, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.take(key, units) {
		return nil, nil
	}
	l := q.lines[key]
	first := l == nil || len(l.waiting) == 0
	switch {
	case !first && q.MaxWaitingOfKey > 0 && len(l.waiting) >= q.MaxWaitingOfKey:
		return nil, &RefusedError{Own: true}
	case q.MaxWaiting > 0 && (!first && q.waiting >= q.MaxWaiting || len(q.turns) >= q.MaxWaiting):
		return nil, &RefusedError{}
	case l == nil:
		l = q.begin(key)
	}
	w := &request{units: units, granted: make(chan struct{})}
	l.waiting = append(l.waiting, w)
	q.waiting++
	q.next(l)
	return w, nil
}

// next gives a line its turn, or removes the line. The caller holds mu.
func (q *Queue) next(l *line) {
	switch {
	case len(l.waiting) == 0 && l.used == 0:
		delete(q.lines, l.key)
	case len(l.waiting) > 0 && !l.turn && q.fits(l, l.waiting[0].units):
		l.turn = true
		q.turns = append(q.turns, l)
	}
}

// grant gives units to waiting requests, while there are free units. The caller holds mu.
func (q *Queue) grant() {
	for len(q.turns) > 0 {
		l := q.turns[0]
		w := l.waiting[0]
		if q.Size > 0 && q.used+w.units > q.Size {
			return
		}
		q.turns, l.turn = q.turns[1:], false
		l.waiting = l.waiting[1:]
		q.waiting--
		l.used += w.units
		q.used += w.units
		close(w.granted)
		q.next(l)
	}
}

// abandon ends the wait of a request whose ctx has ended. If the request got its units meanwhile,
// it keeps them.
func (q *Queue) abandon(ctx context.Context, key string, w *request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	default:
	}
	l := q.lines[key]
	own := !l.turn
	l.waiting = slices.DeleteFunc(l.waiting, func(other *request) bool { return other == w })
	q.waiting--
	if l.turn && (len(l.waiting) == 0 || !q.fits(l, l.waiting[0].units)) {
		q.turns, l.turn = slices.DeleteFunc(q.turns, func(other *line) bool { return other == l }), false
	}
	q.next(l)
	q.grant() // the request may have delayed others
	return &RefusedError{Own: own, Err: ctx.Err()}
}
