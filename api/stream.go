package api

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"mlsd/events"
)

// socketBuffer is the kernel's send buffer, in bytes. With a larger buffer, the server would notice
// late that a client does not read.
const socketBuffer = 256 << 10

// stream is the connection of one subscriber. It outlives the HTTP request. The goroutines of
// delivery, which all streams share, write the events that the connection takes at once. A stream
// has its own goroutine while it catches up, while its client reads slowly, and while it ends.
type stream struct {
	protocol
	kind    string // label in metrics
	sent    sentCounters
	period  time.Duration // time between two calls of beat
	streams *streams
	conn    *wholeWrites // closing it ends all reads and writes at once
	sub     subscription
	cleanup []func()        // called in reverse order when the stream has ended
	ctx     context.Context // ends, with a cause, when no more events may be sent
	cancel  context.CancelCauseFunc

	opened time.Time
	// until is when the present write of events must end, as the time since opened. 0 means that no
	// write is running.
	until    atomic.Int64
	watching atomic.Bool // watchdog is set
	watchdog *time.Timer // calls watch
}

// protocol is how WebSockets and server-sent events differ.
type protocol interface {
	// encode returns the bytes to write for an event, nil if there are none. request says that the
	// reader has not accepted the event's convo.
	encode(e *events.Event, request bool) []byte
	// beat sends something to an idle client. It is called once per period.
	beat()
	// end tells the client why the stream ends, if the client still reads.
	end(why error)
	// cut ends the connection at once.
	cut()
}

// init prepares a stream, except for its connection.
func (k *stream) init(s *streams, p protocol, kind string, sent sentCounters, period time.Duration) {
	k.streams, k.protocol, k.kind, k.sent, k.period, k.opened = s, p, kind, sent, period, time.Now()
	k.watchdog = time.AfterFunc(math.MaxInt64, k.watch) // write sets the time
	k.ctx, k.cancel = context.WithCancelCause(context.Background())
}

// use sets the connection.
func (k *stream) use(conn *wholeWrites) {
	k.conn = conn
	if tcp, ok := conn.Conn.(*net.TCPConn); ok {
		if err := tcp.SetWriteBuffer(socketBuffer); err != nil {
			k.streams.log.Debug("a socket's buffer size was not set", "error", err)
		}
	}
}

// writing reports whether a write of events is running.
func (k *stream) writing() bool { return k.until.Load() != 0 }

// serve sends first, and then the events of sub, until the client or the server ends the stream.
func (k *stream) serve(sub subscription, first []byte) {
	k.sub = sub
	k.cleanup = append(k.cleanup, k.protocol.cut, sub.Close, k.streams.metrics.streamBegins(k.kind),
		k.startBeating(), k.streams.opened(k))
	context.AfterFunc(k.ctx, sub.Wake) // a parked subscription gets a writer again, which sees the cause of the end
	k.send(func() error {
		if first == nil {
			return nil
		}
		return k.write(first)
	})
}

// startBeating calls beat once per period until the stream ends. The first call comes at a random
// time, so that the calls of all streams are spread over the period.
func (k *stream) startBeating() (stop func()) {
	var next *time.Timer
	next = time.AfterFunc(math.MaxInt64, func() {
		if k.ctx.Err() == nil {
			next.Reset(k.period)
			k.streams.run(k.beat)
		}
	})
	next.Reset(rand.N(k.period))
	return func() { next.Stop() }
}

// send starts a goroutine that calls first, and then writes events until no event waits. Later
// events are written by delivery. If the stream ends, the goroutine tells the client why.
func (k *stream) send(first func() error) {
	k.streams.run(func() {
		parked := false
		defer func() {
			if !parked {
				k.cleanUp()
			}
		}()
		err := first()
		if err == nil {
			err = k.sendAll()
		}
		if parked = err == nil; parked {
			return
		}
		// The subscription is closed before the closing handshake, which can take long. That frees
		// memory, and the device counts as disconnected at once.
		k.sub.Close()
		k.streams.metrics.streamEnded(k.kind, reasonOf(err))
		k.end(err)
	})
}

func (k *stream) cleanUp() {
	for _, do := range slices.Backward(k.cleanup) {
		do()
	}
}

// sendAll writes events. Events that wait at the same time share a write. sendAll returns nil once
// the subscription is parked, or the reason why the stream ends.
func (k *stream) sendAll() error {
	var frames [][]byte
	for {
		e, err := k.sub.Ready(k.ctx)
		switch {
		case k.ctx.Err() != nil:
			return context.Cause(k.ctx)
		case err != nil:
			return err
		case e == nil && k.sub.Park(k.ctx, k.ready):
			return nil
		}
		var n int // bytes
		frames, n = k.encodeAll(frames[:0], e)
		if n == 0 {
			continue
		}
		err = k.wrote(k.write(frames...), len(frames), n)
		clear(frames) // so that the memory of the events can be freed
		if err != nil {
			return err
		}
	}
}

// wrote counts the frames of a successful write. If the client was too slow, wrote tells the hub.
func (k *stream) wrote(err error, frames, bytes int) error {
	switch {
	case err == nil:
		k.sent.add(frames, bytes)
	case errors.Is(err, events.ErrConsumerTooSlow):
		k.sub.Slow()
	}
	return err
}

// encodeAll appends the frames of e and of the events that wait after e, and returns their size in
// bytes.
func (k *stream) encodeAll(frames [][]byte, e *events.Event) ([][]byte, int) {
	n := 0
	for ; e != nil; e = another(k.sub, n) {
		if wire := k.encode(e, k.sub.Request(k.ctx)); len(wire) > 0 {
			frames, n = append(frames, wire), n+len(wire)
		}
	}
	return frames, n
}

// write writes frames. Errors: events.ErrConsumerTooSlow if the write took longer than pace allows;
// errStuck if it did not end within about twice that time; errGone; and the cause of the end of
// k.ctx.
func (k *stream) write(frames ...[]byte) error {
	k.conn.mu.Lock()
	return k.writeLocked(frames...)
}

// writeLocked is write for a caller that has locked conn.mu. writeLocked unlocks it.
func (k *stream) writeLocked(frames ...[]byte) error {
	defer k.conn.mu.Unlock()
	n := 0
	for _, f := range frames {
		n += len(f)
	}
	allowed, begun := k.streams.pace.allows(n), time.Now()
	k.until.Store(int64(begun.Sub(k.opened) + 2*allowed))
	if k.watching.CompareAndSwap(false, true) {
		k.watchdog.Reset(2 * allowed)
	}
	var err error
	if len(frames) == 1 {
		_, err = k.conn.Conn.Write(frames[0])
	} else {
		all := net.Buffers(frames)
		_, err = all.WriteTo(k.conn.Conn)
	}
	k.until.Store(0)
	switch took := time.Since(begun); {
	case err != nil && took >= 2*allowed:
		return errStuck
	case err != nil && k.ctx.Err() != nil:
		return context.Cause(k.ctx)
	case err != nil:
		return errGone
	case took > allowed:
		return events.ErrConsumerTooSlow
	}
	return nil
}

// watch ends the connection if the present write has taken too long. It runs once for many writes,
// because setting a deadline for each write would cost more than the write itself.
func (k *stream) watch() {
	k.watching.Store(false)
	until := k.until.Load()
	left := time.Duration(until) - time.Since(k.opened)
	switch {
	case until == 0:
	case left <= 0:
		k.sever()
	case k.watching.CompareAndSwap(false, true):
		k.watchdog.Reset(left)
	}
}

// hurry sets the deadline of all writes. After the deadline, the connection is cut.
func (k *stream) hurry(deadline time.Time) {
	if err := k.conn.SetWriteDeadline(deadline); err != nil {
		k.streams.log.Debug("a connection takes no deadline", "error", err)
	}
}

// sever closes the connection, which ends all reads and writes.
func (k *stream) sever() {
	if err := k.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		k.streams.log.Debug("a connection was not closed cleanly", "error", err)
	}
}

// cut ends the connection without telling the client.
func (k *stream) cut() {
	k.watchdog.Stop()
	k.cancel(errGone)
	k.sever()
}
