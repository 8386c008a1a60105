package api_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/events"
)

// rawStream asks for server-sent events on a connection of its own, and leaves everything after the
// headers to the test. early is sent behind the request.
func (u *user) rawStream(version, early string) (net.Conn, *http.Response) {
	u.w.t.Helper()
	conn, err := net.Dial("tcp", u.w.listen())
	if err != nil {
		u.w.t.Fatal(err)
	}
	u.w.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		u.w.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET /xrpc/%s %s\r\nHost: mls.example.com\r\nAuthorization: %s\r\n\r\n%s",
		mlsapi.NSIDStreamConvoEvents, version, u.authorization(mlsapi.NSIDStreamConvoEvents), early); err != nil {
		u.w.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 512), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		u.w.t.Fatalf("answer: %v, %v", resp, err)
	}
	return conn, resp
}

// The body has chunked coding and ends with its last chunk, and the connection ends behind it. To a
// client of HTTP/1.0 the body is plain, and ends with the connection.
func TestEventStreamsOnTheWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	var bodies []string
	for version, coding := range map[string]int{"HTTP/1.1": 1, "HTTP/1.0": 0} {
		conn, resp := alice.rawStream(version, "")
		if len(resp.TransferEncoding) != coding || !resp.Close || resp.ContentLength != -1 {
			t.Errorf("%s: %v, close %v, length %d", version, resp.TransferEncoding, resp.Close, resp.ContentLength)
		}
		s := h.next(t)
		for i := range int64(3) {
			s.events <- large(i+1, 300*int(i))
		}
		s.fails <- events.ErrReplaced
		body, err := io.ReadAll(resp.Body)
		if err != nil || strings.Count(string(body), "event: ") != 4 || !strings.HasSuffix(string(body), "\n\n") {
			t.Errorf("%s: %v, %q", version, err, body)
		}
		bodies = append(bodies, string(body))
		if rest, err := io.ReadAll(conn); err != nil || len(rest) != 0 {
			t.Errorf("%s: behind the body are %v, %q", version, err, rest)
		}
		s.ended(t)
	}
	if bodies[0] != bodies[1] {
		t.Errorf("the bodies differ:\n%s\n%s", bodies[0], bodies[1])
	}
}

// What a client sends behind its request is no request, and does not end the stream, unless it is
// much. A stream whose client has gone ends.
func TestEventStreamsReadNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	conn, resp := alice.rawStream("HTTP/1.1", "GET / HTTP/1.1\r\nHost: mls.example.com\r\n\r\n")
	s := h.next(t)
	r := &reader{t, resp, bufio.NewReader(resp.Body)}
	for i := range int64(3) {
		if _, err := conn.Write([]byte("more")); err != nil {
			t.Fatal(err)
		}
		s.events <- welcomeEvent(i + 1)
		if e := r.event(); e.id != itoa(i+1) {
			t.Fatalf("got %+v", e)
		}
	}
	if _, err := conn.Write(bytes.Repeat([]byte{'x'}, 64<<10)); err != nil {
		t.Fatal(err)
	}
	if e := r.event(); e.event != "infoEvent" || !strings.Contains(e.data, "Ended: nothing is to be sent") {
		t.Errorf("got %+v", e)
	}
	r.ends()
	s.ended(t)
	w.counts(1, "mlsd_subscriptions_ended_total", "kind", "sse", "reason", "protocol")

	conn, _ = alice.rawStream("HTTP/1.1", "")
	s = h.next(t)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	s.ended(t)
	w.counts(1, "mlsd_subscriptions_ended_total", "kind", "sse", "reason", "client")
}
