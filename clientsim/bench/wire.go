package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"sync"
	"time"

	. "mlsd/clientsim/steps"
)

// wire is one HTTP/1.1 connection for one request at a time. An answer that our server would not
// send is an error. After an error, the connection is closed, and the next request opens another. A
// wire is not safe for concurrent use.
type wire struct {
	addr    string // host:port
	limit   time.Duration
	dialer  dialer
	conn    net.Conn
	in      *bufio.Reader
	body    bytes.Buffer
	renewed time.Time // when the connection's deadline was last set
	closing bool      // the server has said that it closes the connection
}

// answer is the answer to a request. Its body is valid until the next request.
type answer struct {
	status   int
	replayed bool // X-Idempotency-Replay
	body     []byte
}

// Bounds of an answer, in bytes, and of the time that a server may take. The deadline of a
// connection is moved only once a second, because setting it costs more than writing a request.
const (
	maxAnswer   = 32 << 20
	answerLimit = 15 * time.Second
	renewal     = time.Second
)

func newWire(addr string) *wire { return &wire{addr: addr, limit: answerLimit} }

// errAnswer marks an unexpected answer.
var errAnswer = errors.New("not an answer that was to be expected")

func unexpected(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errAnswer, fmt.Sprintf(format, args...))
}

// do sends a request and reads its answer. After an error the outcome is unknown.
func (w *wire) do(ctx context.Context, request []byte) (answer, error) {
	if err := w.send(ctx, request); err != nil {
		return answer{}, err
	}
	return w.receive()
}

// send writes a request, on a new connection if none is open.
func (w *wire) send(ctx context.Context, request []byte) error {
	if w.conn == nil {
		if err := w.dial(ctx); err != nil {
			return err
		}
	}
	if now := time.Now(); now.Sub(w.renewed) > renewal {
		if err := w.conn.SetDeadline(now.Add(w.limit)); err != nil {
			return w.failed(err)
		}
		w.renewed = now
	}
	if _, err := w.conn.Write(request); err != nil {
		return w.failed(err)
	}
	return nil
}

func (w *wire) dial(ctx context.Context) (err error) {
	defer Catch(&err)
	conn := Must(w.dialer.dial(ctx, "tcp", w.addr))
	w.conn, w.renewed, w.closing = conn, time.Time{}, false
	if w.in == nil {
		w.in = bufio.NewReaderSize(conn, 16<<10)
	} else {
		w.in.Reset(conn)
	}
	return nil
}

// dialer opens connections one at a time. In a real storm, each device has its own processor. Here,
// opening all connections at once would delay the measured requests in the load itself. A zero
// dialer has no such limit.
type dialer struct {
	one  *sync.Mutex
	from net.IP // the local address; nil means any
}

func (d dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.one != nil {
		d.one.Lock()
		defer d.one.Unlock()
	}
	one := net.Dialer{Timeout: retryFor}
	if d.from != nil {
		one.LocalAddr = &net.TCPAddr{IP: d.from}
	}
	return one.DialContext(ctx, network, addr)
}

// receive reads the answer to the last request.
func (w *wire) receive() (answer, error) {
	a, err := w.read()
	if err == nil && w.in.Buffered() > 0 {
		err = unexpected("%d bytes behind it", w.in.Buffered())
	}
	if err != nil {
		return a, w.failed(err)
	}
	if w.closing {
		w.close()
	}
	return a, nil
}

func (w *wire) read() (a answer, err error) {
	resp, err := http.ReadResponse(w.in, nil)
	if err != nil {
		if _, ended := w.in.Peek(1); ended == io.EOF && errors.As(err, new(textproto.ProtocolError)) {
			err = io.ErrUnexpectedEOF // the connection ended within a line of the header
		}
		return a, malformed(err)
	}
	w.closing = resp.Close
	a.status, a.replayed = resp.StatusCode, resp.Header.Get("X-Idempotency-Replay") == "true"
	switch encoding := resp.Header.Get("Content-Encoding"); {
	case !resp.ProtoAtLeast(1, 1), a.status < 200, a.status == http.StatusNoContent, a.status == http.StatusNotModified:
		return a, unexpected("%s, status %d", resp.Proto, a.status)
	case encoding != "":
		return a, unexpected("content encoding %q", encoding)
	case resp.ContentLength < 0 && len(resp.TransferEncoding) == 0:
		return a, unexpected("neither a length nor chunks")
	case resp.ContentLength > maxAnswer:
		return a, unexpected("%d bytes", resp.ContentLength)
	}
	w.body.Reset()
	n, err := w.body.ReadFrom(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && n > maxAnswer {
		err = unexpected("more than %d bytes", maxAnswer)
	}
	a.body = w.body.Bytes()
	return a, malformed(err)
}

// malformed marks an error of reading as an unexpected answer, unless the connection has ended or
// failed.
func malformed(err error) error {
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errAnswer) || errors.As(err, new(net.Error)) {
		return err
	}
	return unexpected("%v", err)
}

// failed closes the connection after an error.
func (w *wire) failed(err error) error {
	w.close()
	return err
}

// close closes the connection, if there is one. Errors do not matter here.
func (w *wire) close() {
	if w.conn != nil {
		_ = w.conn.Close()
		w.conn = nil
	}
}
