package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// wire is one HTTP/1.1 connection for one request at a time. An answer that breaks RFC 9112, or
// that our server would not send, is an error. Then the connection is closed, and the next request
// opens another. It is not safe for concurrent use.
type wire struct {
	addr    string // host:port
	limit   time.Duration
	dialer  dialer
	conn    net.Conn
	in      *bufio.Reader
	body    []byte
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
	maxHeader   = 16 << 10
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

// send writes a request, on a new connection if there is none.
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

func (w *wire) dial(ctx context.Context) error {
	conn, err := w.dialer.dial(ctx, "tcp", w.addr)
	if err != nil {
		return err
	}
	w.conn, w.renewed, w.closing = conn, time.Time{}, false
	if w.in == nil {
		w.in = bufio.NewReaderSize(conn, maxHeader)
	} else {
		w.in.Reset(conn)
	}
	return nil
}

// dialer opens connections one at a time. The devices of a storm have processors of their own: here,
// opening all connections at once would delay the measured requests in the load itself. The zero
// dialer has no such limit.
type dialer struct {
	one  *sync.Mutex
	from net.IP // the local address; nil: any
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
	line, err := w.line()
	if err != nil {
		return a, err
	}
	if len(line) < 13 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) || line[12] != ' ' {
		return a, unexpected("it begins with %.40q", line)
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil || a.status < 200 || a.status > 599 ||
		a.status == 204 || a.status == 304 {
		return a, unexpected("status %q", line[9:12])
	}
	length, chunked := -1, false
	for left := maxHeader; ; left -= len(line) {
		if line, err = w.line(); err != nil {
			return a, err
		}
		if len(line) == 0 {
			break
		}
		if left < len(line) {
			return a, unexpected("more than %d bytes of header", maxHeader)
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || len(name) == 0 {
			return a, unexpected("header line %.60q", line)
		}
		value = bytes.TrimSpace(value)
		switch {
		case is(name, "Content-Length"):
			if length >= 0 {
				return a, unexpected("two lengths")
			}
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 || length > maxAnswer {
				return a, unexpected("length %q", value)
			}
		case is(name, "Transfer-Encoding"):
			if !is(value, "chunked") {
				return a, unexpected("transfer encoding %q", value)
			}
			chunked = true
		case is(name, "Content-Encoding"):
			return a, unexpected("content encoding %q", value)
		case is(name, "Connection"):
			w.closing = is(value, "close")
		case is(name, "X-Idempotency-Replay"):
			a.replayed = is(value, "true")
		}
	}
	switch {
	case chunked && length >= 0:
		return a, unexpected("a length and chunks")
	case chunked:
		err = w.readChunks()
	case length >= 0:
		w.body = grow(w.body[:0], length)
		_, err = io.ReadFull(w.in, w.body)
	default:
		return a, unexpected("neither a length nor chunks")
	}
	a.body = w.body
	return a, early(err)
}

// readChunks reads a body that comes in chunks (RFC 9112 §7.1), without trailers.
func (w *wire) readChunks() error {
	w.body = w.body[:0]
	for {
		line, err := w.line()
		if err != nil {
			return err
		}
		size, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return unexpected("chunk size %.20q", line)
		}
		had := len(w.body)
		if had+int(size) > maxAnswer {
			return unexpected("more than %d bytes", maxAnswer)
		}
		w.body = grow(w.body, int(size))
		if _, err := io.ReadFull(w.in, w.body[had:]); err != nil {
			return err
		}
		if line, err = w.line(); err != nil {
			return err
		}
		if len(line) != 0 {
			return unexpected("%.20q behind a chunk", line)
		}
		if size == 0 {
			return nil
		}
	}
}

// line reads a line, which is valid until the next read.
func (w *wire) line() ([]byte, error) {
	line, err := w.in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, unexpected("a line of more than %d bytes", maxHeader)
	case err != nil:
		return nil, early(err)
	case len(line) < 2 || line[len(line)-2] != '\r':
		return nil, unexpected("line %.40q", line)
	}
	return line[:len(line)-2], nil
}

// early turns an end of input into an unexpected one.
func early(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
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

// is compares tokens of a header without regard to case.
func is(got []byte, want string) bool {
	return len(got) == len(want) && bytes.EqualFold(got, []byte(want))
}

// grow makes b longer by n bytes.
func grow(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = append(make([]byte, 0, len(b)+n+len(b)/2), b...)
	}
	return b[:len(b)+n]
}
