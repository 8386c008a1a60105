package limit

import "time"

// transfer is the time during which reserved memory waits for its client. The client sends a body
// or reads an answer. The pool's mu guards the transfer.
type transfer struct {
	setDeadline func(time.Time) error // sets the deadline of the connection; nil means no transfer
	pace        Pace
	began       time.Time // when the transfer began, without pauses
	since       time.Time // the pace is measured from this time
	paused      time.Time // start of the pause; zero if it does not pause
	moved       int64     // bytes moved
	cut         bool
	prev, next  *Reservation

	// The speed is measured from one mark to the next, at least a second later.
	mark    time.Time
	atMark  int64 // bytes moved until the mark
	perMark float64
}

// Pace is how fast a client must be. The client may move no bytes for at most Grace. After Grace,
// it must move PerSecond bytes on average.
type Pace struct {
	Grace     time.Duration
	PerSecond int64
}

// Begin begins a transfer on a connection. setDeadline sets the deadline of the connection; the
// zero time means none.
func (r *Reservation) Begin(setDeadline func(time.Time) error, pace Pace) {
	now := time.Now()
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	r.transfer = transfer{setDeadline: setDeadline, pace: pace, began: now, since: now, mark: now}
	r.enlist()
	r.transfer.extend(now)
}

// enlist puts the transfer into the pool's list, in the order of the times when transfers began.
// The caller holds mu.
func (r *Reservation) enlist() {
	m, t := r.memory, &r.transfer
	t.prev, t.next = m.newest, nil
	for t.prev != nil && t.prev.transfer.began.After(t.began) { // the transfer has paused
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

// Progress counts n bytes that have moved, and gives the client time for the next bytes. Without a
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

// Pause takes a transfer out of the pool's list until the returned function is called. It is for
// times when the client cannot do anything.
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
		if t.setDeadline == nil { // the transfer has ended
			return
		}
		pause := now.Sub(t.paused)
		t.since, t.began, t.mark, t.paused = t.since.Add(pause), t.began.Add(pause), t.mark.Add(pause), time.Time{}
		r.enlist()
		t.extend(now)
	}
}

// End ends the transfer. If all bytes have moved, it removes the deadline; otherwise the connection
// is no longer usable. It reports whether the transfer was cut to make space.
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
	if soonest := now.Add(t.pace.Grace); soonest.Before(deadline) { // a quick start does not earn a pause
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

// set sets the deadline. If this fails, the connection has ended, and its next use returns an
// error.
func (t *transfer) set(deadline time.Time) { _ = t.setDeadline(deadline) }
