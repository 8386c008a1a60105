package api

import (
	"bytes"
	"net"
	"runtime"
	"sync"
	"syscall"
)

// delivery writes events to parked streams. No write waits, so a few goroutines serve all streams,
// and a client that does not read delays no other client.
type delivery struct {
	mu      sync.Mutex // guards the fields below
	waiting []*stream
	writers int // running goroutines
}

// ready implements the wake-up of a parked subscription: the next free writer serves the stream.
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

// write serves waiting streams until no stream waits.
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
	attempt func(fd uintptr) bool // the method value w.try

	out     []byte // what try writes
	written int    // how many bytes of out try has written
}

// serve calls deliver. If deliver panics, serve ends the stream.
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

// deliver writes the events that wait for a stream, and parks the stream again. It never waits for
// a client. If the events must be read from the database, if the connection does not take all bytes
// at once, or if the stream ends, a goroutine of the stream (send) does the rest.
func (w *writer) deliver(k *stream) {
	defer func() { clear(w.frames) }() // so that the memory of the events can be freed
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
// finishes the write. That function may wait.
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
	return func() error { return k.writeLocked(rest) } // conn.mu stays locked, so that no other write comes in between
}

// try writes as much of w.out as the connection takes. It is the callback of syscall.RawConn.Write.
// It returns true, so that RawConn.Write does not wait until the connection takes more.
func (w *writer) try(fd uintptr) bool {
	if n, err := syscall.Write(int(fd), w.out); err == nil {
		w.written = n
	}
	return true
}

// wholeWrites is a connection whose writes do not mix: each write ends before the next one begins.
type wholeWrites struct {
	net.Conn
	raw syscall.RawConn // nil if the connection has none: then each write may wait

	mu sync.Mutex // held during each write
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
