package api

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"mlsd/api/errorlist"
)

// Headers of byte ranges.
const (
	headerRange        = "Range"
	headerContentRange = "Content-Range"
)

// uploadMemory is the memory reserved for an upload, in bytes: the buffers through which the body
// passes. It does not grow with the body.
const uploadMemory = 128 * kib

// upload is the body of a request that its handler reads. The client must be as fast as with any
// other body.
type upload struct {
	call    *call
	body    io.Reader
	resume  func() // ends the pause of the transfer between two Reads, during which the client waits for the store
	moved   int64
	counted int64 // the part of moved that the transfer has counted
	ended   bool  // the body was read to its end
	err     error // the client's error
}

// upload calls the handler of a method whose input is bytes.
func (s *Server) upload(cl *call) error {
	r := cl.http.Request()
	if r.ContentLength > cl.route.maxBody {
		return tooLarge(cl.route, r.ContentLength)
	}
	err := s.memory.streams.Reserve(r.Context(), &cl.body, cl.client(), uploadMemory, uploadMemory)
	if err != nil {
		return refused(err)
	}
	defer cl.body.Release()
	control := http.NewResponseController(cl.http.Response())
	cl.bytes = &upload{call: cl, body: r.Body}
	cl.body.Begin(control.SetReadDeadline, uploadPace)
	cl.bytes.resume = cl.body.Pause()
	err = s.call(cl, nil)
	cl.bodyRead = cl.bytes.ended || cl.bytes.err != nil
	evicted := cl.body.End(cl.bytes.ended)
	s.cfg.Metrics.transferEnded(transferBody, evicted)
	if time.Since(cl.begun) > longUpload {
		s.setDeadline(control.SetWriteDeadline, time.Now().Add(maxRequest+downloadPace.Grace))
	}
	cl.spend(int(cl.bytes.moved / unitBytes))
	if evicted {
		return busy{after: time.Second}
	}
	return err
}

// Read implements io.Reader. Its errors can be sent to the client as answers.
func (u *upload) Read(p []byte) (int, error) {
	u.resume()
	defer func() { u.resume = u.call.body.Pause() }()
	n, err := u.body.Read(p)
	u.moved += int64(n)
	if u.moved-u.counted >= bodyPiece {
		u.call.body.Progress(u.moved - u.counted)
		u.counted = u.moved
	}
	switch {
	case errors.Is(err, io.EOF):
		u.ended = true
	case err != nil:
		u.err = badRequest("the body ended early")
		err = u.err
	}
	return n, err
}

// download is an answer of bytes.
type download struct {
	body   io.Reader
	length int64
	status int
	header http.Header
	close  func()
}

// download writes an answer of bytes. A client that reads too slowly loses the connection. If the
// store fails during the download, the server closes the connection, so that the client notices the
// missing bytes.
func (s *Server) download(cl *call) error {
	w, d := cl.http.Response(), cl.content
	piece := make([]byte, min(answerPiece, d.length))
	n, err := io.ReadFull(d.body, piece)
	if err != nil { // an error is answered in JSON, so the headers below are not set yet
		return err
	}
	for name, values := range d.header {
		w.Header()[name] = values
	}
	w.Header().Set(echo.HeaderContentType, echo.MIMEOctetStream)
	w.Header().Set(echo.HeaderContentLength, strconv.FormatInt(d.length, 10))
	control := http.NewResponseController(w)
	cl.reserved.Begin(control.SetWriteDeadline, downloadPace)
	w.WriteHeader(d.status)
	var sent int64
	for {
		if _, err = w.Write(piece[:n]); err != nil {
			break
		}
		cl.reserved.Progress(int64(n))
		if sent += int64(n); sent == d.length {
			break
		}
		resume := cl.reserved.Pause() // the client waits for the store
		n, err = d.body.Read(piece[:min(int64(len(piece)), d.length-sent)])
		resume()
		if n == 0 && err != nil {
			break
		}
	}
	complete := sent == d.length
	evicted := cl.reserved.End(complete)
	s.cfg.Metrics.transferEnded(transferAnswer, evicted)
	s.handlers.rates.charge(cl.caller, int(sent/unitBytes)) // the headers are sent, so they do not show this charge
	if !complete {
		s.bounded.Warn("an attachment was not read to its end", "evicted", evicted, "error", err)
		return nil // net/http closes the connection, so the client notices the error
	}
	s.setDeadline(control.SetWriteDeadline, time.Now().Add(downloadPace.Grace))
	return nil
}

// byteRange reads a Range header that names one range. The range can reach beyond the end. For any
// other header ok is false, and the whole content is sent.
func byteRange(header string, size int64) (offset, length int64, ok bool) {
	text, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(text, "-")
	if !ok || !dash || strings.Contains(text, ",") {
		return 0, 0, false
	}
	to, toErr := strconv.ParseInt(last, 10, 64)
	if first == "" {
		if toErr != nil || to < 0 {
			return 0, 0, false
		}
		return max(size-to, 0), min(to, size), true
	}
	offset, err := strconv.ParseInt(first, 10, 64)
	switch {
	case err != nil || offset < 0:
		return 0, 0, false
	case last == "":
		return offset, size, true
	case toErr != nil || to < offset:
		return 0, 0, false
	}
	return offset, min(to, size) - offset + 1, true
}

// unsatisfiable returns the answer to a range that begins beyond the end.
func unsatisfiable(size int64) error {
	return failure{
		status: http.StatusRequestedRangeNotSatisfiable, name: errorlist.InvalidRequest,
		message: "the range begins behind the end",
		header:  headerContentRange, value: "bytes */" + strconv.FormatInt(size, 10),
	}
}
