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
	"time"

	"github.com/coder/websocket"
	"github.com/labstack/echo/v4"
	"golang.org/x/net/http/httpguts"

	"mlsd/api/errorlist"
	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/events"
)

// frameBuffer is the size of each of a connection's two buffers, in bytes. One buffer is for what
// the client sends, which is control frames only. The other is for the server's control frames.
// Each of them is written at once, so that no control frame ends up inside an event's frame. A
// server's longest control frame has 127 bytes, a client's has 131.
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

// socket is one WebSocket. One goroutine reads: the client may send only pongs and the close frame.
// Frames of events are written to conn directly. ws makes the opening and the closing handshake,
// reads, and writes control frames, also over conn.
type socket struct {
	stream
	ws *websocket.Conn
}

// accept answers the opening handshake. Afterwards the connection does not depend on the request.
func (s *streams) accept(c echo.Context) (*socket, error) {
	k := &socket{}
	k.init(s, k, kindWebSocket, s.metrics.webSockets, s.pace.ping)
	w := &hijacker{ResponseWriter: c.Response()}
	ws, err := websocket.Accept(w, c.Request(), &websocket.AcceptOptions{
		InsecureSkipVerify: true, // skips the check of the origin: there are no cookies that another site could use
		OnPingReceived: func(context.Context, []byte) bool {
			// During the write of an event, a ping gets no pong. The pong would wait for the event,
			// and the event shows that the server is alive.
			return !k.writing()
		},
	})
	if err != nil {
		return nil, fmt.Errorf("accept the WebSocket: %w", err)
	}
	ws.SetReadLimit(1)
	k.ws = ws
	k.use(w.conn)
	return k, nil
}

// hijacker keeps the connection that Hijack returns. It replaces the buffers for HTTP by buffers of
// frameBuffer bytes.
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
	early, err := rw.Peek(rw.Reader.Buffered()) // what the client has sent after its request
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	r := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(early), conn), max(frameBuffer, len(early)))
	if _, err := r.Peek(len(early)); err != nil { // websocket.Accept drops what is not buffered
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, bufio.NewReadWriter(r, bufio.NewWriterSize(conn, frameBuffer)), nil
}

// refuse accepts the handshake, sends why as an error frame, and returns why. Without the
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
	var first []byte
	if outdated {
		first = frame(&mlsapi.InfoEvent{Name: outdatedCursor, Message: present(outdatedMessage)})
	}
	k.streams.run(k.read)
	k.stream.serve(sub, first)
}

func (k *socket) encode(e *events.Event, request bool) []byte {
	return frameOf(e, request)
}

// frameHeader is the longest header of a server's frame, in bytes.
const frameHeader = 10

// frame returns the WebSocket frame of a message: header and payload.
func frame(m lexcodec.Message) []byte {
	return framed(lexcodec.AppendFrame(make([]byte, frameHeader, 512), m))
}

// framed makes a whole frame of b, which is frameHeader bytes of space and a payload. A server's
// frames are not masked (RFC 6455, sections 5.1 and 5.2).
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
	b[0] = 0x82 // a binary message of one fragment
	return b
}

// end tells the client why the stream ends, if the client still reads. The close frame repeats the
// name of the error, because some clients cannot read an error frame.
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

// close performs the closing handshake, within pace.close.
func (k *socket) close(code websocket.StatusCode, reason string) {
	defer time.AfterFunc(k.streams.pace.close, func() { k.sever() }).Stop()
	if err := k.ws.Close(code, reason); err != nil {
		k.streams.log.Debug("a WebSocket was not closed cleanly", "error", err)
	}
}

// read waits until the connection ends, or until the client sends a data frame, which is forbidden.
// It handles pings and pongs.
func (k *socket) read() {
	if _, _, err := k.ws.Reader(context.Background()); err == nil {
		k.cancel(errSpoke) // the writer closes the connection
		return
	}
	k.cancel(errGone)
	k.sever()
}

// beat sends a ping. During the write of an event, beat sends none. The client's device then counts
// as possibly disconnected, until the client answers a later ping.
func (k *socket) beat() {
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

// cut ends the WebSocket without a closing handshake.
func (k *socket) cut() {
	k.stream.cut()
	_ = k.ws.CloseNow() // frees the memory of ws; the connection is closed already
}
