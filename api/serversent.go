package api

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/mlsapi"
	"mlsd/events"
)

// eventStream is an answer of server-sent events. It takes over the connection, so that it costs no
// more than a WebSocket. Its body has chunked transfer coding (RFC 9112, section 7.1). For a client
// that speaks HTTP/1.0, the body ends when the connection ends (section 6.3).
type eventStream struct {
	stream
	// chunked says that each event is written as a chunk.
	chunked bool
	began   string // the cursor at which the stream began
	last    int64  // number of the last event that was written; 0 if none was written
	ended   bool   // the last chunk was written; guarded by conn.mu
}

// answer answers a request with an event stream, and takes over the request's connection. The
// listener speaks HTTP/1, so each request has its own connection.
func (s *streams) answer(c *httpRequest) (*eventStream, error) {
	r, w := c.Request(), c.Response()
	e := &eventStream{}
	e.init(s, e, kindServerSent, s.metrics.serverSent, s.pace.keepAlive)
	w.Header().Set(echo.HeaderContentType, "text/event-stream")
	w.Header().Set(echo.HeaderCacheControl, "no-cache")
	w.Header().Set("X-Accel-Buffering", "no") // otherwise nginx sends only full buffers
	w.Header().Set(echo.HeaderConnection, "close")
	w.WriteHeader(http.StatusOK)
	c.streamed = time.Now()
	control := http.NewResponseController(w.Writer) // w.Flush returns no error
	taken, _, err := control.Hijack()               // net/http has chosen the coding, and sends the headers
	if err != nil {
		return nil, fmt.Errorf("take the connection over: %w", err)
	}
	e.chunked = r.ProtoAtLeast(1, 1)
	conn, err := newWholeWrites(taken)
	if err != nil {
		return nil, errors.Join(err, taken.Close())
	}
	e.use(conn)
	return e, nil
}

// serve sends the events of sub until the client or the server ends the stream.
func (e *eventStream) serve(sub subscription, began string, outdated bool) {
	e.began = began
	var first []byte
	if outdated {
		first = e.coded(e.info(outdatedCursor, outdatedMessage))
	}
	e.streams.run(e.read)
	e.stream.serve(sub, first)
}

func (e *eventStream) encode(event *events.Event, request bool) []byte {
	if event.Signal != nil {
		return e.coded(serverSentSignal(event, request, e.cursor()))
	}
	e.last = event.Number()
	return e.coded(serverSentOf(event, request))
}

// cursor returns the cursor of the last event that was written, or the cursor at which the stream
// began.
func (e *eventStream) cursor() string {
	if e.last == 0 {
		return e.began
	}
	return strconv.FormatInt(e.last, 10)
}

// info returns the chunk of a message about the stream itself. The message has no id, so the client
// keeps its last event id.
func (e *eventStream) info(name, message string) []byte {
	return serverSent(&mlsapi.StreamConvoEventsInfoEvent{Cursor: e.cursor(), Info: name + ": " + message})
}

// coded returns the bytes to write for a chunk.
func (e *eventStream) coded(chunk []byte) []byte {
	if e.chunked {
		return chunk
	}
	return contentOf(chunk)
}

// maxUnwanted is how much a client may send after its request, in bytes. These bytes are not read
// as requests, because the answer says that the connection will be closed (RFC 9112, section 9.6).
const maxUnwanted = 64 * kib

// read waits until the connection ends.
func (e *eventStream) read() {
	unwanted := make([]byte, 128)
	for n := 0; n < maxUnwanted; {
		got, err := e.conn.Read(unwanted)
		if err != nil {
			e.cancel(errGone)
			e.sever()
			return
		}
		n += got
	}
	e.cancel(errSpoke) // the writer ends the stream
}

var keepAlive = chunk(append(make([]byte, chunkHeader), ": keep-alive\n\n"...))

// beat writes a comment, so that proxies do not close an idle stream, and so that the server
// notices a client that has gone. During another write, beat does nothing.
func (e *eventStream) beat() {
	if !e.conn.mu.TryLock() {
		return
	}
	if e.ended {
		e.conn.mu.Unlock()
		return
	}
	if err := e.writeLocked(e.coded(keepAlive)); err != nil {
		e.cancel(err)
	}
}

func (e *eventStream) end(why error) {
	var last [][]byte
	info := func(name, message string) { last = append(last, e.coded(e.info(name, message))) }
	switch f, refused := refusal(why); {
	case errors.Is(why, errGone), errors.Is(why, errStuck):
		return
	case refused:
		info(f.name, f.message)
	case errors.Is(why, errSpoke):
		info("Ended", errSpoke.Error())
	case errors.Is(why, events.ErrReplaced):
		info("Replaced", events.ErrReplaced.Error())
	case errors.Is(why, events.ErrClosing):
		after := e.streams.pace.reconnect()
		last = append(last, e.coded(chunk(fmt.Appendf(make([]byte, chunkHeader), "retry: %d\n", after))))
		info("Restarting", fmt.Sprintf("reconnect after %d ms", after))
	default:
		info(e.streams.failed(why), "the stream cannot go on now; reconnect")
	}
	if e.chunked {
		last = append(last, []byte(lastChunk))
	}
	e.conn.mu.Lock()
	e.ended = true
	if err := e.writeLocked(last...); err != nil {
		e.streams.log.Debug("the reason for a stream's end was not sent", "error", err)
	}
}

const (
	// chunkHeader is the longest header of a chunk, in bytes: the length in hexadecimal, and a line
	// break.
	chunkHeader = 10
	// lastChunk ends a body (RFC 9112, section 7.1).
	lastChunk = "0\r\n\r\n"
)

// chunk makes a chunk of b, which is chunkHeader bytes of space and the content.
func chunk(b []byte) []byte {
	size := strconv.AppendInt(nil, int64(len(b)-chunkHeader), 16)
	begin := chunkHeader - len(size) - 2
	copy(b[begin:], append(size, "\r\n"...))
	return append(b[begin:], "\r\n"...)
}

// contentOf returns the content of a chunk that chunk has made.
func contentOf(b []byte) []byte {
	_, content, _ := bytes.Cut(b, []byte("\r\n"))
	return bytes.TrimSuffix(content, []byte("\r\n"))
}
