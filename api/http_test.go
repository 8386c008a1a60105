package api_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/api"
	"mlsd/api/mlsapi"
)

// line is a raw connection to a real server, such as a PDS that forwards a body has.
type line struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, w *world) *line {
	t.Helper()
	server := httptest.NewServer(w.server)
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return &line{t: t, conn: conn, in: bufio.NewReader(conn)}
}

func (l *line) write(p string) {
	l.t.Helper()
	if err := l.conn.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		l.t.Fatal(err)
	}
	if _, err := io.WriteString(l.conn, p); err != nil {
		l.t.Fatalf("the server does not take the whole body: %v", err)
	}
}

func (l *line) head(u *user, nsid string, more ...string) {
	l.t.Helper()
	l.write("POST /xrpc/" + nsid +
		" HTTP/1.1\r\nHost: mls.example.com\r\nContent-Type: application/json\r\nAuthorization: " +
		u.authorization(nsid) + "\r\n" + strings.Join(more, "\r\n") + "\r\n\r\n")
}

// silent fails the test if an answer comes before the body is sent.
func (l *line) silent() {
	l.t.Helper()
	if err := l.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		l.t.Fatal(err)
	}
	if b, err := l.in.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		l.t.Fatalf("an answer comes while the body is being sent: %q, %v", b, err)
	}
	l.in.Reset(l.conn) // bufio remembers the timeout
}

func (l *line) answer() answer {
	l.t.Helper()
	if err := l.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		l.t.Fatal(err)
	}
	res, err := http.ReadResponse(l.in, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return answer{t: l.t, status: res.StatusCode, header: res.Header, body: body}
}

// A body that is too large is read to its end before the 413 is written, so that the connection
// stays usable. A PDS that gets an answer while it is still sending never uses the connection
// again.
func TestOversizedBodyIsDrained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	const pieces, size = 48, 64 << 10 // 3 MiB, where 256 KiB are allowed
	piece := strings.Repeat("x", size)
	good := encode(&mlsapi.UpdateCursorInput{ConvoID: uuid.NewString()})
	usable := func(l *line) {
		t.Helper()
		l.head(alice, mlsapi.NSIDUpdateCursor, fmt.Sprintf("Content-Length: %d", len(good)))
		l.write(string(good))
		l.answer().fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	}
	t.Run("Content-Length", func(t *testing.T) {
		l := dial(t, w)
		l.head(alice, mlsapi.NSIDUpdateCursor, fmt.Sprintf("Content-Length: %d", pieces*size))
		for i := range pieces {
			l.write(piece)
			if i%16 == 8 {
				l.silent()
			}
		}
		l.answer().fails(http.StatusRequestEntityTooLarge, "PayloadTooLarge")
		usable(l)
	})
	t.Run("chunked", func(t *testing.T) {
		l := dial(t, w)
		l.head(alice, mlsapi.NSIDUpdateCursor, "Transfer-Encoding: chunked")
		for i := range pieces {
			l.write(fmt.Sprintf("%x\r\n%s\r\n", size, piece))
			if i%16 == 8 {
				l.silent()
			}
		}
		l.write("0\r\n\r\n")
		l.answer().fails(http.StatusRequestEntityTooLarge, "PayloadTooLarge")
		usable(l)
	})
	t.Run("refused before the body is looked at", func(t *testing.T) {
		l := dial(t, w)
		l.write(fmt.Sprintf("POST /xrpc/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
			"%d\r\n\r\n",
			mlsapi.NSIDSendMessage, pieces*size))
		for range pieces {
			l.write(piece)
		}
		l.answer().fails(http.StatusUnauthorized, "AuthMissing")
		usable(l)
	})
	t.Run("cut", func(t *testing.T) {
		l := dial(t, w)
		l.head(alice, mlsapi.NSIDUpdateCursor, fmt.Sprintf("Content-Length: %d", len(good)))
		l.write(string(good[:5]))
		if err := l.conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		l.answer().fails(http.StatusBadRequest, "InvalidRequest")
	})
}

// The largest message is accepted. One byte more is refused.
func TestLargestMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	in := alice.message(c, "")
	in.Ciphertext = alice.message(c, strings.Repeat("x", 10<<20-len(in.Ciphertext)-3)).Ciphertext
	if len(in.Ciphertext) != 10<<20 {
		t.Fatalf("the message has %d bytes", len(in.Ciphertext))
	}
	alice.post(mlsapi.NSIDSendMessage, in).ok()
	in.Ciphertext, in.IdempotencyKey = append(in.Ciphertext, 0), newKey()
	alice.post(mlsapi.NSIDSendMessage, in).fails(http.StatusRequestEntityTooLarge, mlsapi.ErrMessageTooLarge)
}

// Requests that are wrong as HTTP.
func TestWrongHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	query, procedure := mlsapi.NSIDGetConvos, mlsapi.NSIDUpdateCursor
	body := encode(&mlsapi.UpdateCursorInput{ConvoID: c.id})
	for _, test := range []struct {
		name, verb, nsid string
		header, value    string
		body             []byte
		part             string // of the message
	}{
		{"POST to a query", "POST", query, "", "", body, "GET"},
		{"PUT to a query", "PUT", query, "", "", body, "GET"},
		{"DELETE to a query", "DELETE", query, "", "", nil, "GET"},
		{"GET of a procedure", "GET", procedure, "", "", nil, "POST"},
		{"HEAD of a query", "HEAD", query, "", "", nil, "GET"},
		{"HEAD of a procedure", "HEAD", procedure, "", "", nil, "POST"},
		{"PUT to a procedure", "PUT", procedure, "", "", body, "POST"},
		{"PATCH to a procedure", "PATCH", procedure, "", "", body, "POST"},
		{"no Content-Type", "POST", procedure, "Content-Type", "", body, "Content-Type"},
		{"form", "POST", procedure, "Content-Type", "application/x-www-form-urlencoded", body, "Content-Type"},
		{"text", "POST", procedure, "Content-Type", "text/plain", body, "Content-Type"},
		{"CBOR", "POST", procedure, "Content-Type", "application/cbor", body, "Content-Type"},
		{"JSON of some kind", "POST", procedure, "Content-Type", "application/ld+json", body, "Content-Type"},
		{"malformed Content-Type", "POST", procedure, "Content-Type", "application/json; =", body, "Content-Type"},
		{"gzip", "POST", procedure, "Content-Encoding", "gzip", body, "Content-Encoding"},
		{"two codings", "POST", procedure, "Content-Encoding", "identity, gzip", body, "Content-Encoding"},
		{"empty body", "POST", procedure, "", "", nil, "body"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := w.request(test.verb, test.nsid, nil, test.body, alice.authorization(test.nsid))
			if test.header != "" {
				r.Header.Set(test.header, test.value)
			}
			if test.header != "" && test.value == "" {
				r.Header.Del(test.header)
			}
			if message := w.answer(w.server, r).fails(http.StatusBadRequest, "InvalidRequest"); !strings.Contains(message,
				test.part) {
				t.Fatalf("the message is %q", message)
			}
		})
	}
	for _, good := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON"} {
		w.do(http.MethodPost, procedure, nil, body, alice.authorization(procedure), "Content-Type", good).ok()
	}
	w.do(http.MethodPost, procedure, nil, body, alice.authorization(procedure), "Content-Encoding", "identity").ok()
}

// Unknown methods, and paths that are not NSIDs, are not implemented.
func TestUnknownMethod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, path := range []string{
		"blue.catbird.mls.nope", "blue.catbird.mls.SENDMESSAGE", "com.atproto.server.createSession", "nope", "_nope", "%00",
		"%2e%2e",
		"blue.catbird.mls.sendMessage%2F", "blue.catbird.mls.sendMessage/", "a/b", "", "..%2f..%2fetc",
		strings.Repeat("a", 5000), "blue.catbird.mls.defs",
	} {
		for _, verb := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
			r := httptest.NewRequest(verb, "/xrpc/"+path, strings.NewReader("{}"))
			a := w.answer(w.server, r)
			a.fails(http.StatusNotImplemented, "MethodNotImplemented")
			if len(a.body) > 200 {
				t.Fatalf("the refusal has %d bytes", len(a.body))
			}
		}
	}
	// the admin listener's are not here
	for _, path := range []string{"/", "/nope", "/xrpcs/x", "/metrics", "/debug/pprof/", "/readyz"} {
		a := w.answer(w.server, httptest.NewRequest(http.MethodGet, path, nil))
		if a.fails(http.StatusNotFound, "NotFound"); a.header.Get("Content-Type") != "application/json" {
			t.Fatalf("%s is answered as %s", path, a.header.Get("Content-Type"))
		}
	}
}

// Unknown fields and parameters are ignored. Two requests that differ only in them are the same.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	body := encode(alice.message(c, "hello"))
	post := func(body []byte) answer {
		return w.do(http.MethodPost, mlsapi.NSIDSendMessage, query("future", "1"), body,
			alice.authorization(mlsapi.NSIDSendMessage))
	}
	first := post(body)
	first.ok()
	more := append(bytes.TrimSuffix(body, []byte("}")), `,"reactions":{"deep":[1,{"x":null}]},"future":null}`...)
	post(more).replays(first)
	alice.get(mlsapi.NSIDGetConvos, "future", "1", "future", "2").ok()
}

// A browser sends a preflight request first.
func TestCORS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := httptest.NewRequest(http.MethodOptions, "/xrpc/"+mlsapi.NSIDSendMessage, nil)
	for name, value := range map[string]string{
		"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST",
		"Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
	} {
		r.Header.Set(name, value)
	}
	preflight := w.answer(w.server, r)
	if preflight.status != http.StatusNoContent || preflight.header.Get("Access-Control-Allow-Origin") != "*" ||
		!strings.Contains(preflight.header.Get("Access-Control-Allow-Methods"), "POST") {
		t.Fatalf("the preflight is answered with %d %v", preflight.status, preflight.header)
	}
	for _, name := range []string{"Authorization", "Content-Type", "Idempotency-Key"} {
		if !strings.Contains(preflight.header.Get("Access-Control-Allow-Headers"), name) {
			t.Errorf("%s is not allowed", name)
		}
	}
	for _, a := range []answer{
		w.do(http.MethodGet, mlsapi.NSIDGetConvos, nil, nil, "", "Origin", "https://app.example.com"),
		w.do(http.MethodGet, mlsapi.NSIDGetConvos, nil, nil, w.user().authorization(mlsapi.NSIDGetConvos), "Origin",
			"https://app.example.com"),
	} {
		exposed := strings.Split(a.header.Get("Access-Control-Expose-Headers"), ",")
		if a.header.Get("Access-Control-Allow-Origin") != "*" || a.header.Get("Access-Control-Allow-Credentials") != "" ||
			!slices.Contains(exposed, "Retry-After") || !slices.Contains(exposed, "Date") {
			t.Errorf("the answer %d has the headers %v", a.status, a.header)
		}
	}
}

// S13: pages that need no token are charged to the address, apart from requests of methods: neither
// uses up what the other has.
func TestPagesHaveARate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.rates.IP = api.Rate{PerSecond: 1e-3, Burst: 4} })
	for range 4 {
		w.do(http.MethodGet, mlsapi.NSIDGetConvos, nil, nil, "").fails(http.StatusUnauthorized, "AuthMissing")
	}
	page := func(path string) answer { return w.answer(w.server, httptest.NewRequest(http.MethodGet, path, nil)) }
	page("/xrpc/_health").ok()
	page("/xrpc/_health").ok()
	page("/.well-known/did.json").ok()
	page("/nothing").fails(http.StatusNotFound, "NotFound")
	a := page("/xrpc/_health")
	if a.fails(http.StatusTooManyRequests, "RateLimitExceeded"); a.header.Get("Retry-After") == "" {
		t.Error("it does not say when there is a page again")
	}
}

// A proxy of the operator's checks health as often as it likes: a node that refused it would be taken
// out of service. Its clients have their own addresses, and their limits.
func TestHealthChecksOfProxies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.rates.IP, w.proxies = api.Rate{PerSecond: 1e-3, Burst: 4}, []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}
	})
	health := func(address string) answer {
		r := httptest.NewRequest(http.MethodGet, "/xrpc/_health", nil)
		return w.answerTo(address, r)
	}
	for range 20 {
		health("192.0.2.7").ok()
	}
	for range 4 {
		health("192.0.2.8").ok()
	}
	health("192.0.2.8").fails(http.StatusTooManyRequests, "RateLimitExceeded")
}

// Health and the DID document need no token.
func TestPublicPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	health := w.answer(w.server, httptest.NewRequest(http.MethodGet, "/xrpc/_health", nil))
	if got := string(health.ok()); strings.TrimSpace(got) != `{"version":"test"}` {
		t.Fatalf("_health is %s", got)
	}
	type document struct {
		ID      string `json:"id"`
		Service []struct{ ID, Type, ServiceEndpoint string }
	}
	doc := read[document](t, w.answer(w.server, httptest.NewRequest(http.MethodGet, "/.well-known/did.json", nil)).ok())
	if doc.ID != service || len(doc.Service) != 1 || doc.Service[0].ID != "#atproto_mls" ||
		doc.Service[0].ServiceEndpoint != "https://mls.example.com" {
		t.Fatalf("did.json is %+v", doc)
	}
}
