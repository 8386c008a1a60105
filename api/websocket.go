package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/labstack/echo/v4"
	"golang.org/x/net/http/httpguts"

	"mlsd/api/errorlist"
	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/events"
)

// socketBuffer is the kernel's send buffer, in bytes. With a larger one the server would notice
// late that a client does not read.
const socketBuffer = 256 << 10

// frameBuffer is the size of the two buffers of a connection, in bytes. One is for what the client
// sends, which is control frames only. The other is for the control frames of the server: each
// leaves it with one write, so that it never stands inside an event's frame. The longest control
// frame of a server has 127 bytes, the longest of a client 131.
const frameBuffer = 256

// checkUpgrade refuses a request that is not an opening handshake of a WebSocket (RFC 6455, section
// 4.2.1).
func checkUpgrade(c echo.Context) error {
	r, h := c.Request(), c.Response().Header()
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	switch {
	case r.Method != http.MethodGet:
		h.Set(echo.HeaderAllow, http.MethodGet)
		return failure{status: http.StatusMethodNotAllowed, name: errorlist.InvalidRequest,
			message: "the method is a subscription: use GET"}
	case !r.ProtoAtLeast(1, 1), !httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade"),
		!httpguts.HeaderValuesContainsToken(r.Header["Upgrade"], "websocket"):
		h.Set("Connection", "Upgrade")
		h.Set("Upgrade", "websocket")
		return failure{status: http.StatusUpgradeRequired, name: errorlist.InvalidRequest,
			message: "the method is a subscription: use a WebSocket"}
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		h.Set("Sec-WebSocket-Version", "13")
		return badRequest("Sec-WebSocket-Version must be 13")
	case err != nil, len(key) != 16, len(r.Header.Values("Sec-WebSocket-Key")) != 1:
		return badRequest("Sec-WebSocket-Key must be 16 bytes in base64")
	case r.ContentLength != 0:
		return badRequest("a subscription has no body")
	}
	return nil
}

// socket is one WebSocket. It outlives the HTTP request. One goroutine reads: only pongs and the
// close frame may come from the client. Events that the connection takes at once are written by the
// goroutines of delivery, which all sockets share. A socket has a goroutine of its own for writing
// while it catches up, while its client reads slowly, and at its end.
//
// Events are written to conn, whole frames with one call. ws makes the opening and the closing
// handshake, reads, and writes control frames, through conn too.
type socket struct {
	streams *streams
	ws      *websocket.Conn
	conn    *wholeWrites // under ws; closing it ends all reads and writes at once
	sub     subscription
	cleanup []func()        // called when the stream has ended, the last one first
	ctx     context.Context // ends, with a cause, when no more events are to be sent
	cancel  context.CancelCauseFunc

	opened time.Time
	// until is when the present write of events has to end, as the time since opened. 0: no events
	// are being written.
	until    atomic.Int64
	watching atomic.Bool // watchdog runs
	watchdog *time.Timer // calls watch
}

// writing reports whether events are being written.
func (k *socket) writing() bool { return k.until.Load() != 0 }

// accept answers the opening handshake. After it the connection does not depend on the request.
func (s *streams) accept(c echo.Context) (*socket, error) {
	k := &socket{streams: s, opened: time.Now()}
	k.watchdog = time.AfterFunc(math.MaxInt64, k.watch) // write starts it
	k.ctx, k.cancel = context.WithCancelCause(context.Background())
	w := &hijacker{ResponseWriter: c.Response()}
	ws, err := websocket.Accept(w, c.Request(), &websocket.AcceptOptions{
		InsecureSkipVerify: true, // of the origin: there are no cookies that another site could use
		OnPingReceived: func(context.Context, []byte) bool {
			// During the write of an event there is no pong: it would wait for the event, and the
			// event shows that the server is alive.
			return !k.writing()
		},
	})
	if err != nil {
		return nil, fmt.Errorf("accept the WebSocket: %w", err)
	}
	ws.SetReadLimit(1)
	k.ws, k.conn = ws, w.conn
	if tcp, ok := w.conn.Conn.(*net.TCPConn); ok {
		if err := tcp.SetWriteBuffer(socketBuffer); err != nil {
			s.log.Debug("a socket's buffer size was not set", "error", err)
		}
	}
	return k, nil
}

// hijacker keeps the connection that Hijack returns, and gives it buffers of frameBuffer bytes
// instead of those for HTTP.
type hijacker struct {
	http.ResponseWriter
	conn *wholeWrites
}

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	hijacked, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	conn, err := newWholeWrites(hijacked)
	if err != nil {
		return nil, nil, errors.Join(err, hijacked.Close())
	}
	h.conn = conn
	early, err := rw.Peek(rw.Reader.Buffered()) // what the client sent behind its request
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	r := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(early), conn), max(frameBuffer, len(early)))
	if _, err := r.Peek(len(early)); err != nil { // websocket.Accept drops what is not buffered
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, bufio.NewReadWriter(r, bufio.NewWriterSize(conn, frameBuffer)), nil
}

// refuse accepts the handshake, sends the error why as an error frame, and returns it. Without the
// handshake, a browser would not see the error.
func (s *streams) refuse(c echo.Context, why error) error {
	k, err := s.accept(c)
	if err != nil {
		return err
	}
	s.run(func() {
		defer k.cut()
		k.end(why)
	})
	return why
}

// serve sends the events of sub until the client or the server ends the stream.
func (k *socket) serve(sub subscription, outdated bool) {
	k.sub = sub
	k.cleanup = []func(){
		k.cut, sub.Close, k.streams.metrics.streamBegins(kindWebSocket), k.streams.pings.add(k.ping), k.streams.opened(k),
	}
	context.AfterFunc(k.ctx, sub.Wake) // a parked subscription gets a writer again, which learns the cause
	k.streams.run(k.read)
	k.send(func() error {
		if !outdated {
			return nil
		}
		return k.write(frame(&mlsapi.InfoEvent{Name: outdatedCursor, Message: present(outdatedMessage)}))
	})
}

// send starts a goroutine that calls first, and then writes events until none waits. Later events
// are written by delivery. If the stream ends, the goroutine tells the client why.
func (k *socket) send(first func() error) {
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
		// This comes before the closing handshake, which can take long: it frees memory, and the
		// device counts as disconnected at once.
		k.sub.Close()
		k.streams.metrics.streamEnded(kindWebSocket, reasonOf(err))
		k.end(err)
	})
}

func (k *socket) cleanUp() {
	for _, do := range slices.Backward(k.cleanup) {
		do()
	}
}

// sendAll writes events. Events that wait at the same time share a write. It returns nil once the
// subscription is parked, or the reason why the stream ends.
func (k *socket) sendAll() error {
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
		frames, n = k.encode(frames[:0], e)
		if n == 0 {
			continue
		}
		err = k.wrote(k.write(frames...), len(frames), n)
		clear(frames) // for the memory of the events
		if err != nil {
			return err
		}
	}
}

// wrote counts frames that were written, or tells the hub that the client is too slow for them.
func (k *socket) wrote(err error, frames, bytes int) error {
	switch {
	case err == nil:
		k.streams.metrics.webSockets.sent(frames, bytes)
	case errors.Is(err, events.ErrConsumerTooSlow):
		k.sub.Slow()
	}
	return err
}

// encode appends the frames of e and of the events that wait after it, and returns their bytes.
func (k *socket) encode(frames [][]byte, e *events.Event) ([][]byte, int) {
	n := 0
	for ; e != nil; e = another(k.sub, n) {
		if wire := frameOf(e, k.sub.Request(k.ctx), k.streams.heads); len(wire) > 0 {
			frames, n = append(frames, wire), n+len(wire)
		}
	}
	return frames, n
}

// frameHeader is the longest header of a server's frame, in bytes.
const frameHeader = 10

// frame is the WebSocket frame of a message: header and payload.
func frame(m lexcodec.Message) []byte {
	return framed(lexcodec.AppendFrame(make([]byte, frameHeader, 512), m))
}

// framed makes a whole frame from frameHeader bytes of space and a payload. A server's frames are not
// masked (RFC 6455, sections 5.1 and 5.2).
func framed(b []byte) []byte {
	switch n := len(b) - frameHeader; {
	case n <= 125:
		b = b[frameHeader-2:]
		b[1] = byte(n)
	case n <= math.MaxUint16:
		b = b[frameHeader-4:]
		b[1] = 126
		binary.BigEndian.PutUint16(b[2:], uint16(n))
	default:
		b[1] = 127
		binary.BigEndian.PutUint64(b[2:], uint64(n))
	}
	b[0] = 0x82 // the only fragment of a binary message
	return b
}

// write writes frames. Errors: events.ErrConsumerTooSlow if it took longer than pace allows;
// errStuck if it did not end within about twice that time; errGone; and the cause of the end of
// k.ctx.
func (k *socket) write(frames ...[]byte) error {
	k.conn.mu.Lock()
	return k.writeLocked(frames...)
}

// writeLocked is write for a caller that has locked conn.mu. It unlocks conn.mu.
func (k *socket) writeLocked(frames ...[]byte) error {
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

// watch ends the connection if the present write has taken too long. It runs once for many writes:
// to set a deadline for each would cost this process more than the write itself.
func (k *socket) watch() {
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

// end tells the client why the stream ends, if it still reads. The close frame repeats the name,
// because some clients cannot read an error frame.
func (k *socket) end(why error) {
	f, refused := refusal(why)
	switch {
	case errors.Is(why, errGone), errors.Is(why, errStuck), errors.Is(why, errSilent):
	case refused:
		if err := k.write(framed(lexcodec.AppendErrorFrame(make([]byte, frameHeader), f.name, f.message))); err == nil ||
			errors.Is(err, events.ErrConsumerTooSlow) {
			k.close(websocket.StatusPolicyViolation, f.name)
		}
	case errors.Is(why, errSpoke):
		k.close(websocket.StatusPolicyViolation, errSpoke.Error())
	case errors.Is(why, events.ErrReplaced):
		k.close(websocket.StatusPolicyViolation, events.ErrReplaced.Error())
	case errors.Is(why, events.ErrClosing):
		k.close(websocket.StatusServiceRestart, fmt.Sprintf("restarting; reconnect after %d ms", k.streams.pace.reconnect()))
	default:
		k.close(websocket.StatusInternalError, k.streams.failed(why))
	}
}

// close does the closing handshake, in at most pace.close.
func (k *socket) close(code websocket.StatusCode, reason string) {
	defer time.AfterFunc(k.streams.pace.close, func() { k.sever() }).Stop()
	if err := k.ws.Close(code, reason); err != nil {
		k.streams.log.Debug("a WebSocket was not closed cleanly", "error", err)
	}
}

// read waits until the connection ends or the client sends a data frame, which it must not. It
// handles pings and pongs.
func (k *socket) read() {
	if _, _, err := k.ws.Reader(context.Background()); err == nil {
		k.cancel(errSpoke) // the writer closes the connection
		return
	}
	k.cancel(errGone)
	k.sever()
}

// ping checks that the client is alive. During the write of an event it sends no ping. Then the
// client's device counts as possibly disconnected, until the client answers a later ping.
func (k *socket) ping() {
	if k.writing() {
		k.sub.Doubt()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.streams.pace.pong)
	defer cancel()
	switch err := k.ws.Ping(ctx); {
	case err == nil:
		k.sub.Trust()
	case k.writing():
		k.sub.Doubt()
	default:
		k.cancel(errSilent)
		k.sever()
	}
}

// hurry implements sender.
func (k *socket) hurry(deadline time.Time) {
	if err := k.conn.SetWriteDeadline(deadline); err != nil {
		k.streams.log.Debug("a connection takes no deadline", "error", err)
	}
}

// sever closes the connection, which ends all reads and writes.
func (k *socket) sever() {
	if err := k.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		k.streams.log.Debug("a connection was not closed cleanly", "error", err)
	}
}

// cut ends the WebSocket without a closing handshake.
func (k *socket) cut() {
	k.watchdog.Stop()
	k.cancel(errGone)
	k.sever()
	_ = k.ws.CloseNow() // frees its memory; the connection is closed already
}
