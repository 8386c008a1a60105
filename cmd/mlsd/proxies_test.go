package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mlsd/api/mlsapi"
)

const (
	// proxyPrograms names the programs of proxies: nginx=/usr/sbin/nginx haproxy=… caddy=….
	// deploy/ops/proxies/check.sh sets it.
	proxyPrograms = "MLSD_TEST_PROXIES"

	// proxyIdle is after how much silence the proxies of the guide close a connection.
	proxyIdle = 40 * time.Second
	// atOnce is how late an event may come. The server sends something every 15 seconds, which can
	// push out what a proxy holds back, so it is less.
	atOnce = 5 * time.Second
)

// Two nodes behind each proxy of docs/operating/PROXIES.md, with the configuration that it shows.
// Nodes are replaced at the end, while all three work.
func TestProxies(t *testing.T) {
	programs := map[string]string{}
	for _, entry := range strings.Fields(os.Getenv(proxyPrograms)) {
		name, program, _ := strings.Cut(entry, "=")
		programs[name] = program
	}
	if len(programs) == 0 {
		t.Skip("SKIPPED: " + proxyPrograms + " is not set; deploy/ops/proxies/check.sh runs this test with real proxies")
	}
	w, nodes := newWorld(t), newNodes(t)
	nodes.start(t, w, 0)
	nodes.start(t, w, 1)
	var all []*proxied
	for i, kind := range proxyKinds() {
		if programs[kind.name] == "" {
			continue
		}
		p := &proxied{proxy: startProxy(t, kind, programs[kind.name], nodes.addresses), number: i + 1}
		p.world = &world{t: t, plc: w.plc, client: p.clientAt(p.from(1), true), public: "https://" + publicHost}
		all = append(all, p)
	}
	t.Run("behind", func(t *testing.T) {
		for _, p := range all {
			t.Run(p.kind.name, func(t *testing.T) {
				t.Parallel()
				p.check(t)
			})
		}
	})
	if !t.Failed() {
		replaceNodes(t, w, nodes, all)
	}
}

// proxied is a proxy, and a world whose requests go through it.
type proxied struct {
	*proxy
	*world
	number  int // of the proxy
	streams *proxiedStreams
}

// from returns an address of this machine, of the proxy's client of this number.
func (p *proxied) from(client int) string { return fmt.Sprintf("127.0.%d.%d", p.number, client) }

func (p *proxied) check(t *testing.T) {
	outer := p.t
	p.world.t = t
	defer func() { p.world.t = outer }()
	p.checkPages(t)
	alice, bob := p.user(), p.user()
	c := alice.create(bob)
	p.streams = p.open(t, bob, c)
	p.streams.deliver(t, alice, "at the beginning")
	p.checkAddresses(t)
	p.checkBodies(t)
	p.checkCompression(t)
	p.streams.outlast(t, proxyIdle)
	p.streams.deliver(t, alice, "after the idle time-out")
	access, err := os.ReadFile(filepath.Join(p.dir, "access.log")) // nginx's; others write to stdout
	if err != nil && p.kind.name == "nginx" {
		t.Error(err)
	}
	if log := p.log.String() + string(access); strings.Contains(log, "ticket=") ||
		!strings.Contains(log, mlsapi.NSIDSendMessage) && p.kind.name != "caddy" {
		t.Errorf("the access log has a ticket, or has no paths:\n%s", log)
	}
}

// checkPages checks what is public, by HTTP/2, and that nothing else is.
func (p *proxied) checkPages(t *testing.T) {
	t.Helper()
	for _, page := range []struct {
		path     string
		statuses []int
	}{
		{"/.well-known/did.json", []int{http.StatusOK}},
		{"/xrpc/_health", []int{http.StatusOK}},
		{"/xrpc/unknown.method.name", []int{http.StatusNotImplemented}},
		{"/xrpc/../metrics", []int{http.StatusNotFound, http.StatusNotImplemented}}, // HAProxy passes the path on as it is
		{"/metrics", []int{http.StatusNotFound}},
		{"/readyz", []int{http.StatusNotFound}},
		{"/check", []int{http.StatusNotFound}},
		{"/debug/pprof/", []int{http.StatusNotFound}},
		{"/admin/account/show", []int{http.StatusNotFound}},
		{"/", []int{http.StatusNotFound}},
	} {
		resp, err := p.client.Get(p.public + page.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(page.statuses, resp.StatusCode) || resp.ProtoMajor != 2 {
			t.Errorf("%s is answered by HTTP/%d with %d: %s", page.path, resp.ProtoMajor, resp.StatusCode, body)
		}
		if strings.HasSuffix(page.path, "did.json") && !bytes.Contains(body, []byte(`"serviceEndpoint":"`+p.public+`"`)) {
			t.Errorf("%s is %s", page.path, body)
		}
	}
}

// checkAddresses checks that the server limits requests by the client's address, and that a client
// can neither hide its own nor use up that of another one.
func (p *proxied) checkAddresses(t *testing.T) {
	t.Helper()
	noisy, quiet := p.clientAt(p.from(2), true), p.clientAt(p.from(3), true)
	refused, sent := 0, 0
	for ; refused < 20; sent++ {
		forged := p.from(3)
		if sent%2 == 0 {
			forged = fmt.Sprintf("203.0.%d.%d", sent/250, sent%250)
		}
		switch status := p.unauthorized(t, noisy, forged); {
		case status == http.StatusTooManyRequests:
			refused++
		case status != http.StatusUnauthorized || sent > 500:
			t.Fatalf("request %d is answered with %d", sent, status)
		default:
			refused = 0
		}
	}
	if status := p.unauthorized(t, quiet, ""); status != http.StatusUnauthorized {
		t.Errorf("another client is answered with %d", status)
	}
	t.Logf("one client is refused after %d requests, another one is not", sent-refused)
}

// unauthorized sends a request without a token, and returns the status.
func (p *proxied) unauthorized(t *testing.T, client *http.Client, forwardedFor string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.public+"/xrpc/"+mlsapi.NSIDGetConvos, nil)
	if err != nil {
		t.Fatal(err)
	}
	if forwardedFor != "" {
		r.Header.Set("X-Forwarded-For", forwardedFor)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// checkBodies checks that the largest message and the largest body pass, and that the server refuses
// a larger one itself.
func (p *proxied) checkBodies(t *testing.T) {
	t.Helper()
	const largestBody = 15 << 20
	alice, bob := p.user(), p.user()
	c := alice.create(bob)
	largest := alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, strings.Repeat("m", 10<<20-1000)))
	largest.must().ok()
	padded := alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "short"))
	padded.body = append(padded.body, bytes.Repeat([]byte(" "), largestBody-len(padded.body))...)
	padded.must().ok()
	padded.body = append(padded.body, ' ')
	padded.must().fails(http.StatusRequestEntityTooLarge, "PayloadTooLarge")
	t.Logf("a message of %d bytes and a body of %d pass; one of %d gets the server's error", 10<<20-1000, largestBody,
		largestBody+1)
}

// checkCompression checks that a compressed page says the same as one that is not.
func (p *proxied) checkCompression(t *testing.T) {
	t.Helper()
	alice, bob := p.user(), p.user()
	c := alice.create(bob)
	for i := range 20 {
		alice.procedure(mlsapi.NSIDSendMessage,
			alice.message(c, fmt.Sprint("message ", i, strings.Repeat(".", 500)))).must().ok()
	}
	page := bob.query(mlsapi.NSIDGetMessages, "convoId", c.id)
	plain := page.must()
	page.header = http.Header{"Accept-Encoding": {"gzip"}}
	compressed := page.must()
	if compressed.header.Get("Content-Encoding") != "gzip" || plain.header.Get("Content-Encoding") != "" {
		t.Fatalf("headers %v without compression, %v with it", plain.header, compressed.header)
	}
	reader, err := gzip.NewReader(bytes.NewReader(compressed.body))
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(reader)
	if err != nil || !bytes.Equal(got, plain.ok()) {
		t.Errorf("%v; the compressed page is another one:\n%s\n%s", err, got, plain.body)
	}
	t.Logf("a page of %d bytes is compressed to %d", len(plain.body), len(compressed.body))
}

// proxiedStreams are the two streams of a user: a WebSocket that a ticket has opened, and
// server-sent events.
type proxiedStreams struct {
	convo  *convo
	opened time.Time
	socket *websocket.Conn
	frames chan error  // nil for each message; the last one is why it has ended
	lines  chan string // of the server-sent events; closed at their end
}

// open opens both, from an address that has sent nothing else. They end with the outer test.
func (p *proxied) open(t *testing.T, u *user, c *convo) *proxiedStreams {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		if t.Failed() {
			cancel()
		}
	})
	s := &proxiedStreams{convo: c, opened: time.Now(), frames: make(chan error, 100), lines: make(chan string, 1000)}
	ticket := read[mlsapi.GetSubscriptionTicketOutput](t,
		request{u: u, verb: http.MethodPost, nsid: mlsapi.NSIDGetSubscriptionTicket}.must().ok())
	var err error
	s.socket, _, err = websocket.Dial(ctx, ticket.URL, &websocket.DialOptions{HTTPClient: p.clientAt(p.from(1), false)})
	if err != nil {
		t.Fatalf("%s: %v", ticket.URL, err)
	}
	go s.readFrames(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.public+"/xrpc/"+mlsapi.NSIDStreamConvoEvents, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", u.Authorization(t, serviceDID, mlsapi.NSIDStreamConvoEvents, time.Now()))
	r.Header.Set("Accept-Encoding", "gzip")
	resp, err := p.client.Do(r)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != "" {
		t.Fatalf("%+v, %v", resp, err)
	}
	go s.readLines(resp.Body)
	return s
}

// readFrames passes on that a message has come. The convo's own beginning can come before it.
func (s *proxiedStreams) readFrames(ctx context.Context) {
	for {
		_, frame, err := s.socket.Read(ctx)
		if err != nil || bytes.Contains(frame, []byte("#messageEvent")) {
			s.frames <- err
		}
		if err != nil {
			return
		}
	}
}

func (s *proxiedStreams) readLines(body io.ReadCloser) {
	defer close(s.lines)
	defer func() { _ = body.Close() }()
	for scanner := bufio.NewScanner(body); scanner.Scan(); {
		s.lines <- scanner.Text()
	}
}

// deliver sends a message, which must come by both streams at once.
func (s *proxiedStreams) deliver(t *testing.T, sender *user, text string) {
	t.Helper()
	sender.procedure(mlsapi.NSIDSendMessage, sender.message(s.convo, text)).must().ok()
	begun, late := time.Now(), time.After(atOnce)
	select {
	case err := <-s.frames:
		if err != nil {
			t.Fatalf("%s: the WebSocket has ended: %v", text, err)
		}
	case <-late:
		t.Fatalf("%s: the WebSocket has no event after %s", text, atOnce)
	}
	socket := time.Since(begun)
	for event := ""; event != "event: messageEvent"; {
		var open bool
		select {
		case event, open = <-s.lines:
			if !open {
				t.Fatalf("%s: the server-sent events have ended", text)
			}
		case <-late:
			t.Fatalf("%s: no server-sent event after %s", text, atOnce)
		}
	}
	t.Logf("%s: the WebSocket had the event %s after the answer, server-sent events after %s", text, socket,
		time.Since(begun))
}

// outlast waits until the streams have been open and silent for longer than a time. The comments of
// the server-sent events tell the time.
func (s *proxiedStreams) outlast(t *testing.T, idle time.Duration) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < idle; {
		select {
		case err := <-s.frames:
			t.Fatalf("the WebSocket has ended or sent something after %s: %v", time.Since(s.opened), err)
		case line, open := <-s.lines:
			if !open || strings.HasPrefix(line, "event:") {
				t.Fatalf("server-sent events have ended or sent %q after %s", line, time.Since(s.opened))
			}
		case <-time.After(deadline):
			t.Fatal("the server-sent events are silent")
		}
	}
}
