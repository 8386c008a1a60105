package api

import (
	"bytes"
	"net"
	"runtime"
	"sync"
	"syscall"
)

// delivery writes events to parked streams. A write is a system call that does not wait, so a few
// goroutines serve all streams, and a client that does not read delays no other one.
type delivery struct {
	mu      sync.Mutex // guards what follows
	waiting []*stream
	writers int // goroutines
}

// ready implements the wake-up of a parked subscription: the next free writer takes the stream.
func (k *stream) ready() {
	d := &k.streams.delivery
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, k)
	if d.writers < runtime.GOMAXPROCS(0) {
		d.writers++
		k.streams.run(func() { d.write() })
	}
}

// write writes until no stream waits.
func (d *delivery) write() {
	w := &writer{}
	w.attempt = w.try
	var all []*stream
	for {
		d.mu.Lock()
		n := min((len(d.waiting)+d.writers-1)/d.writers, 64) // the other writers take the rest
		all = append(all[:0], d.waiting[:n]...)
		clear(d.waiting[:n])
		if d.waiting = d.waiting[n:]; n == 0 {
			d.waiting = nil
			d.writers--
		}
		d.mu.Unlock()
		if n == 0 {
			return
		}
		for _, k := range all {
			w.serve(k)
		}
	}
}

// writer has the buffers that a goroutine of delivery reuses for each write.
type writer struct {
	frames  [][]byte
	joined  []byte
	attempt func(fd uintptr) bool // the method try

	out     []byte // what try writes
	written int    // what it has written
}

// serve calls deliver, and ends the stream if it panics.
func (w *writer) serve(k *stream) {
	returned := false
	defer func() {
		if !returned {
			k.cleanUp()
		}
	}()
	defer k.streams.rescue()
	w.deliver(k)
	returned = true
}

// deliver writes the events that wait for a stream, and parks it again. It never waits for one
// client. So a goroutine of the stream (send) does the rest: events that must be read from the
// database, bytes that the connection does not take at once, and the end of the stream.
func (w *writer) deliver(k *stream) {
	defer func() { clear(w.frames) }() // for the memory of the events
	for {
		e := k.sub.More()
		if e == nil {
			if !k.sub.Park(k.ctx, k.ready) {
				k.send(func() error { return nil })
			}
			return
		}
		var n int // bytes
		w.frames, n = k.encodeAll(w.frames[:0], e)
		if n == 0 {
			continue
		}
		sent := len(w.frames)
		if unfinished := w.write(k); unfinished != nil {
			k.send(func() error { return k.wrote(unfinished(), sent, n) })
			return
		}
		_ = k.wrote(nil, sent, n)
	}
}

// write writes w.frames if the connection takes them at once. Otherwise it returns a function that
// finishes the write, and may wait.
func (w *writer) write(k *stream) (finish func() error) {
	w.out, w.written = w.frames[0], 0
	if len(w.frames) > 1 {
		w.joined = w.joined[:0]
		for _, f := range w.frames {
			w.joined = append(w.joined, f...)
		}
		w.out = w.joined
	}
	if !k.conn.mu.TryLock() { // a control frame is being written
		all := bytes.Clone(w.out)
		return func() error { return k.write(all) }
	}
	if k.conn.raw != nil {
		_ = k.conn.raw.Write(w.attempt) // finish gets the same error
	}
	if w.written == len(w.out) {
		k.conn.mu.Unlock()
		return nil
	}
	rest := bytes.Clone(w.out[w.written:])
	return func() error { return k.writeLocked(rest) } // conn.mu stays locked: nothing may come in between
}

// try writes w.out, as far as the connection takes it. It is for syscall.RawConn.Write, and returns
// true so that RawConn.Write does not wait until the connection takes more.
func (w *writer) try(fd uintptr) bool {
	if n, err := syscall.Write(int(fd), w.out); err == nil {
		w.written = n
	}
	return true
}

// wholeWrites is a connection whose writes do not mix: each ends before the next one begins.
type wholeWrites struct {
	net.Conn
	raw syscall.RawConn // nil: the connection has none, so each write may wait

	mu sync.Mutex // held during a write
}

func newWholeWrites(conn net.Conn) (*wholeWrites, error) {
	w := &wholeWrites{Conn: conn}
	if c, ok := conn.(syscall.Conn); ok {
		var err error
		if w.raw, err = c.SyscallConn(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Write implements net.Conn.
func (w *wholeWrites) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Conn.Write(b)
}
