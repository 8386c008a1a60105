package limit

import "time"

// transfer is the time in which reserved memory waits for its client, which sends a body or reads
// an answer. The pool's mu guards it.
type transfer struct {
	setDeadline func(time.Time) error // of the connection; nil: there is no transfer
	pace        Pace
	began       time.Time // pauses do not count
	since       time.Time // the pace counts from here
	paused      time.Time // zero: it does not pause
	moved       int64     // bytes
	cut         bool
	prev, next  *Reservation

	// The speed is measured from a mark to the next, which is a second later or more.
	mark    time.Time
	atMark  int64 // moved at the mark
	perMark float64
}

// Pace is how fast a client has to be: nothing moves for at most Grace, and after it PerSecond bytes
// move on average.
type Pace struct {
	Grace     time.Duration
	PerSecond int64
}

// Begin begins a transfer on a connection. setDeadline sets the deadline of the connection; the zero
// time is none.
func (r *Reservation) Begin(setDeadline func(time.Time) error, pace Pace) {
	now := time.Now()
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	r.transfer = transfer{setDeadline: setDeadline, pace: pace, began: now, since: now, mark: now}
	r.enlist()
	r.transfer.extend(now)
}

// enlist puts the transfer into the pool's list, by the time when it began. The caller holds mu.
func (r *Reservation) enlist() {
	m, t := r.memory, &r.transfer
	t.prev, t.next = m.newest, nil
	for t.prev != nil && t.prev.transfer.began.After(t.began) { // it has paused
		t.prev, t.next = t.prev.transfer.prev, t.prev
	}
	if t.prev != nil {
		t.prev.transfer.next = r
	} else {
		m.oldest = r
	}
	if t.next != nil {
		t.next.transfer.prev = r
	} else {
		m.newest = r
	}
}

// delist undoes enlist.
func (r *Reservation) delist() {
	m, t := r.memory, &r.transfer
	if t.prev != nil {
		t.prev.transfer.next = t.next
	} else {
		m.oldest = t.next
	}
	if t.next != nil {
		t.next.transfer.prev = t.prev
	} else {
		m.newest = t.prev
	}
	t.prev, t.next = nil, nil
}

// Progress counts n bytes that have moved, and gives the client time for the next ones. Without a
// transfer it does nothing.
func (r *Reservation) Progress(n int64) {
	now := time.Now()
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	t := &r.transfer
	if t.setDeadline == nil {
		return
	}
	t.moved += n
	if now.Sub(t.mark) >= time.Second {
		t.perMark, t.mark, t.atMark = t.speed(now), now, t.moved
	}
	t.extend(now)
}

// Pause takes a transfer out of the pool's list until the returned function is called. The client
// cannot do anything meanwhile.
func (r *Reservation) Pause() (resume func()) {
	m := r.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.transfer.setDeadline == nil {
		return func() {}
	}
	r.delist()
	r.transfer.paused = time.Now()
	return func() {
		now := time.Now()
		m.mu.Lock()
		defer m.mu.Unlock()
		t := &r.transfer
		if t.setDeadline == nil { // it has ended
			return
		}
		pause := now.Sub(t.paused)
		t.since, t.began, t.mark, t.paused = t.since.Add(pause), t.began.Add(pause), t.mark.Add(pause), time.Time{}
		r.enlist()
		t.extend(now)
	}
}

// End ends the transfer. It removes the deadline if all has moved: otherwise the connection is of no
// use any more. It reports whether the transfer was cut to make space.
func (r *Reservation) End(complete bool) (cut bool) {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	t := &r.transfer
	if t.setDeadline == nil {
		return false
	}
	if t.paused.IsZero() {
		r.delist()
	}
	cut = t.cut
	if complete {
		t.set(time.Time{})
	}
	*t = transfer{}
	return cut
}

// extend sets the deadline for the next bytes, unless the transfer was cut.
func (t *transfer) extend(now time.Time) {
	if t.cut {
		return
	}
	seconds := float64(t.moved) / float64(t.pace.PerSecond)
	deadline := t.since.Add(t.pace.Grace + time.Duration(seconds*float64(time.Second)))
	if soonest := now.Add(t.pace.Grace); soonest.Before(deadline) { // a quick start earns no pause
		deadline = soonest
	}
	t.set(deadline)
}

// speed is how many bytes per second have moved lately.
func (t *transfer) speed(now time.Time) float64 {
	if since := now.Sub(t.mark); since >= time.Second {
		return float64(t.moved-t.atMark) / since.Seconds()
	}
	return t.perMark
}

// set sets the deadline. If it cannot, the connection has ended, and its next use says so.
func (t *transfer) set(deadline time.Time) { _ = t.setDeadline(deadline) }
