package devserver

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/atdata"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/cmd/mlsd-dev/repository"
)

// connKey is the key of a request's connection in its context.
type connKey struct{}

// ConnContext lets faults close connections. Use it as http.Server.ConnContext of the server that
// serves a Server.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// serve sends a request to the service or the PDS, and applies a planned fault.
func (f *faults) serve(w http.ResponseWriter, r *http.Request, service http.Handler) {
	fault, planned := f.strike(r)
	if !planned {
		service.ServeHTTP(w, r)
		return
	}
	switch fault.Kind {
	case loseAnswer:
		fault.loseAnswer(w, r, service)
	case delay, pdsSlow:
		if wait(r.Context(), fault.duration()) == nil {
			service.ServeHTTP(w, r)
		}
	case answerStatus, pdsAway:
		if fault.Status == 0 {
			panic(http.ErrAbortHandler) // closes the connection
		}
		fault.answer(w)
	case cut:
		panic(http.ErrAbortHandler) // closes the connection
	case slow:
		service.ServeHTTP(&slowWriter{ResponseWriter: w, ctx: r.Context(), takes: fault.duration()}, r)
	case recordMissing, recordOtherKey, badProof:
		service.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), lieKey{}, fault.Kind)))
	}
}

// lieKey is the key of the kind of fault that changes what a request sees of a repository.
type lieKey struct{}

// lie returns a repository as a planned fault lets the request see it. The account's key has signed
// what it sees, except for a bad proof: its PDS has that key.
func lie(r *http.Request, truth *repository.State) (_ *repository.State, err error) {
	defer Catch(&err)
	lying, _ := r.Context().Value(lieKey{}).(string)
	if lying == badProof {
		return truth.SignedBy(Must(atcrypto.GeneratePrivateKeyP256()))
	}
	if lying == "" {
		return truth, nil
	}
	for _, record := range Must(truth.Records(deviceCollection)) {
		if lying == recordMissing {
			truth = Must(truth.Delete(record.Path))
			continue
		}
		if key, _ := record.Value["signatureKey"].(atdata.Bytes); len(key) > 0 {
			key[0] ^= 1 // the record is a copy
			truth = Must(truth.Put(record.Path, record.Value))
		}
	}
	return truth, nil
}

// wait waits for d, unless the client disconnects first.
func wait(ctx context.Context, d time.Duration) error {
	xrpc.Sleep(ctx, d)
	return ctx.Err()
}

// loseAnswer lets the service answer, discards the answer, and closes the connection. A stream's
// answer does not end by itself, so its connection closes after a while.
func (f *Fault) loseAnswer(w http.ResponseWriter, r *http.Request, service http.Handler) {
	conn, known := r.Context().Value(connKey{}).(net.Conn)
	if known && streams(r) {
		timer := time.AfterFunc(f.duration(), func() { _ = conn.Close() }) // the client may have closed it
		defer timer.Stop()
		service.ServeHTTP(w, r)
		return
	}
	service.ServeHTTP(&discarding{ResponseWriter: w, header: http.Header{}}, r)
	panic(http.ErrAbortHandler) // closes the connection
}

// streams reports whether the answer is a stream of events.
func streams(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || strings.HasSuffix(r.URL.Path, ".streamConvoEvents")
}

// answer writes an error in the form of the service.
func (f *Fault) answer(w http.ResponseWriter) {
	if f.RetryAfter != nil {
		w.Header().Set("Retry-After", strconv.Itoa(*f.RetryAfter))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Access-Control-Allow-Origin", "*")
	w.Header().Set("Access-Control-Expose-Headers", "Retry-After,Date")
	w.WriteHeader(f.Status)
	// An error here means that the client has closed the connection.
	_ = json.NewEncoder(w).Encode(errorBody{nameOfStatus(f.Status), "a planned fault, by POST /dev/faults"})
}

// nameOfStatus returns the name of the error that the service uses for a status.
func nameOfStatus(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "InvalidRequest"
	case http.StatusUnauthorized:
		return "InvalidToken"
	case http.StatusForbidden:
		return "NotPermitted"
	case http.StatusRequestEntityTooLarge:
		return "PayloadTooLarge"
	case http.StatusTooManyRequests:
		return "RateLimitExceeded"
	}
	return strings.ReplaceAll(http.StatusText(status), " ", "")
}

// discarding is a ResponseWriter whose answer nobody gets. Deadlines apply to the connection.
type discarding struct {
	http.ResponseWriter
	header http.Header
}

func (d *discarding) Header() http.Header         { return d.header }
func (d *discarding) WriteHeader(int)             {}
func (d *discarding) Write(p []byte) (int, error) { return len(p), nil }
func (d *discarding) FlushError() error           { return nil }
func (d *discarding) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// slowWriter writes each piece of an answer slowly.
type slowWriter struct {
	http.ResponseWriter
	ctx   context.Context
	takes time.Duration
}

// slowPieces is the largest number of pieces of a slow answer.
const slowPieces = 20

func (s *slowWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Write implements io.Writer. It takes the time of the fault, however long p is.
func (s *slowWriter) Write(p []byte) (n int, err error) {
	size := max(1, (len(p)+slowPieces-1)/slowPieces)
	pause := s.takes / time.Duration(max(1, (len(p)+size-1)/size))
	for len(p) > 0 {
		piece := p[:min(size, len(p))]
		written, err := s.ResponseWriter.Write(piece)
		n += written
		if err == nil {
			err = http.NewResponseController(s.ResponseWriter).Flush()
		}
		if err == nil {
			err = wait(s.ctx, pause)
		}
		if err != nil {
			return n, err
		}
		p = p[len(piece):]
	}
	return n, nil
}
