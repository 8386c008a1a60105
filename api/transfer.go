package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/errorlist"
	"mlsd/internal/limit"
)

// How fast clients must be.
var (
	uploadPace   = limit.Pace{Grace: 10 * time.Second, PerSecond: 16 * kib}
	downloadPace = limit.Pace{Grace: 10 * time.Second, PerSecond: 64 * kib}
	drainPace    = limit.Pace{Grace: 5 * time.Second, PerSecond: 256 * kib}
)

// Sizes of pieces of bodies and answers, in bytes.
const (
	// firstPiece is the memory for a body before any byte has arrived.
	firstPiece = 4 * kib
	// The memory for a body is at most bodyGrowth times the size of what has arrived, or
	// bodyGrowthUndeclared times if the request does not declare the body's length.
	bodyGrowth, bodyGrowthUndeclared = 16, 4
	bodyPiece                        = 16 * kib // after each piece, the client gets time for the next
	answerPiece                      = 128 * kib
	drainBuffer                      = 8 * kib
	drainPiece                       = 64 * kib
)

// After an upload that takes longer than longUpload, the answer gets a new deadline: the deadline
// that the server set when the request began would be near.
const longUpload = 10 * time.Second

// readBody reads the whole body. Memory is reserved as the body arrives, until cl.body is released.
// Errors: those of [refused], and errors for broken and for too large bodies.
func (s *Server) readBody(cl *call) (body []byte, err error) {
	r, limit := cl.http.Request(), cl.route.maxBody
	if r.ContentLength > limit {
		return nil, tooLarge(cl.route, r.ContentLength)
	}
	most, growth := r.ContentLength, int64(bodyGrowth)
	if r.ContentLength < 0 {
		most, growth = limit+1, bodyGrowthUndeclared
	}
	first := min(most, firstPiece)
	if err := s.memory.bodies.Reserve(r.Context(), &cl.body, cl.client(), most, first); err != nil {
		return nil, refused(err)
	}
	cl.bodyRead = true
	control := http.NewResponseController(cl.http.Response())
	cl.body.Begin(control.SetReadDeadline, uploadPace)
	body, err = cl.receive(make([]byte, 0, first), most, growth)
	whole := err == nil && (r.ContentLength < 0 || int64(len(body)) == r.ContentLength)
	evicted := cl.body.End(whole)
	s.cfg.Metrics.transferEnded(transferBody, evicted)
	if time.Since(cl.begun) > longUpload {
		s.setDeadline(control.SetWriteDeadline, time.Now().Add(maxRequest+downloadPace.Grace))
	}
	switch {
	case whole && int64(len(body)) > limit:
		cl.bodyRead = false
		return nil, tooLarge(cl.route, 0)
	case whole:
		return body, nil
	case evicted:
		return nil, busy{after: time.Second}
	case errors.As(err, new(limited)), errors.As(err, new(busy)):
		cl.bodyRead = false
		return nil, err
	}
	return nil, badRequest("the body ended early")
}

// receive reads up to most bytes into body. The memory grows with the bytes that have arrived.
func (c *call) receive(body []byte, most, growth int64) ([]byte, error) {
	in, counted := c.http.Request().Body, 0
	for int64(len(body)) < most {
		if len(body) == cap(body) {
			next := min(most, growth*int64(cap(body)))
			if err := c.body.Grow(c.ctx, next-c.body.Bytes()); err != nil {
				return nil, refused(err)
			}
			body = append(make([]byte, 0, next), body...)
		}
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
		if moved := len(body) - counted; moved >= bodyPiece {
			c.body.Progress(int64(moved))
			counted = len(body)
		}
	}
	return body, nil
}

// tooLarge returns the error for a body that is too long. n is its length in bytes, 0 if that was
// not declared.
func tooLarge(route *route, n int64) error {
	got := "more"
	if n != 0 {
		got = strconv.FormatInt(n, 10)
	}
	return named(errorlist.PayloadTooLarge, fmt.Sprintf("the body of %s must have at most %d bytes, got %s",
		route.Method.NSID, route.maxBody, got))
}

// write writes the answer. A client that reads too slowly loses the connection.
func (s *Server) write(cl *call) error {
	if len(cl.answer) <= maxTiny { // fits into the connection's buffers
		return cl.http.JSONBlob(http.StatusOK, cl.answer)
	}
	w := cl.http.Response()
	w.Header().Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	w.Header().Set(echo.HeaderContentLength, strconv.Itoa(len(cl.answer)))
	control := http.NewResponseController(w)
	cl.reserved.Begin(control.SetWriteDeadline, downloadPace)
	w.WriteHeader(http.StatusOK)
	var err error
	for left := cl.answer; len(left) > 0 && err == nil; {
		piece := left[:min(len(left), answerPiece)]
		if _, err = w.Write(piece); err == nil {
			cl.reserved.Progress(int64(len(piece)))
			left = left[len(piece):]
		}
	}
	evicted := cl.reserved.End(err == nil)
	s.cfg.Metrics.transferEnded(transferAnswer, evicted)
	if err != nil {
		s.cfg.Log.Debug("an answer was not read", "evicted", evicted, "error", err)
		return nil // net/http closes the connection
	}
	s.setDeadline(control.SetWriteDeadline, time.Now().Add(downloadPace.Grace)) // net/http still writes
	return nil
}

// maxDrained is how much of an unwanted body drain reads at most, in bytes.
const maxDrained = 16 * mib

// drain reads the rest of a refused body. A PDS that is still sending does not read the answer, and
// never uses the connection again. A client loses the connection if it sends more than maxDrained,
// sends too slowly, or has too many such bodies on their way.
func (s *Server) drain(cl *call) {
	r, w := cl.http.Request(), cl.http.Response()
	if cl.bodyRead || r.Body == nil || r.Body == http.NoBody {
		return
	}
	control := http.NewResponseController(w)
	var reserved limit.Reservation
	hangUp := func() {
		w.Header().Set(echo.HeaderConnection, "close")
		s.setDeadline(control.SetReadDeadline, time.Now())
	}
	if !s.memory.drains.TryAcquire(cl.address, 1) {
		hangUp()
		return
	}
	defer s.memory.drains.Release(cl.address, 1)
	of := limit.Client{Key: cl.address, Address: cl.address}
	if !s.memory.bodies.TryReserve(&reserved, of, drainBuffer, drainBuffer) {
		hangUp()
		return
	}
	defer reserved.Release()
	reserved.Begin(control.SetReadDeadline, drainPace)
	complete := false
	for drained := int64(0); drained < maxDrained; {
		n, err := io.CopyN(io.Discard, r.Body, drainPiece)
		if err != nil {
			complete = errors.Is(err, io.EOF)
			break
		}
		drained += n
		reserved.Progress(n)
	}
	s.cfg.Metrics.transferEnded(transferDrain, reserved.End(complete))
	if !complete {
		w.Header().Set(echo.HeaderConnection, "close")
	}
	s.setDeadline(control.SetWriteDeadline, time.Now().Add(downloadPace.Grace)) // for the answer
}

// setDeadline sets a deadline of a connection. If that fails, the connection has ended, and its
// next use fails too.
func (s *Server) setDeadline(set func(time.Time) error, deadline time.Time) {
	if err := set(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.cfg.Log.Debug("a connection takes no deadline", "error", err)
	}
}
