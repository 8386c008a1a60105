package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgpool"
)

// connect opens a connection to the world's server. It reads little ahead.
func (w *world) connect(address string) net.Conn {
	w.t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			w.t.Error(err)
		}
	})
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// H2: people who ask for large pages and do not read them fill the memory for answers. They lose
// their connections, and others read on.
func TestSlowReadersLoseTheirPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.LimitLargeAnswers(40<<20, 40<<20)
	server := httptest.NewServer(w.server)
	t.Cleanup(server.Close)
	mallory, bob := w.user(), w.user()
	c := mallory.create(bob)
	in := mallory.message(c, "")
	in.Ciphertext = mlstest.Message(c.group, c.epoch, strings.Repeat("x", 5_600_000))
	mallory.post(mlsapi.NSIDSendMessage, in).ok()
	for range 4 {
		conn := w.connect(server.Listener.Addr().String())
		_, err := fmt.Fprintf(conn, "GET /xrpc/%s?convoId=%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\n\r\n",
			mlsapi.NSIDGetMessages, c.id, mallory.authorization(mlsapi.NSIDGetMessages))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 12)); err != nil { // HTTP/1.1 200: the answer is in memory
			t.Fatal(err)
		}
	}
	bob.get(mlsapi.NSIDGetMessages, "convoId", c.id).ok()
	bob.get(mlsapi.NSIDGetConvos).ok()
	if cut := w.metric("mlsd_transfers_cut_total", "kind", "answer"); !(cut >= 1 && cut <= 4) {
		t.Errorf("%v transfers are counted as cut", cut)
	}
}

// H2: large pages are made one after another, so that many at once do not stop everybody. Small
// ones do not wait, and a page for which others wait is shorter. Nothing is left out.
func TestLargePagesTakePlaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	in := alice.message(c, "")
	for range 3 {
		in.Ciphertext, in.IdempotencyKey = mlstest.Message(c.group, c.epoch, strings.Repeat("x", 700_000)), newKey()
		alice.post(mlsapi.NSIDSendMessage, in).ok()
	}
	small := alice.create(bob)
	alice.send(small, "hello")
	ask := func(cursor ...string) answer {
		return bob.get(mlsapi.NSIDGetMessages, append([]string{"convoId", c.id}, cursor...)...)
	}
	pageOf := func(a answer) (n int, next *string) {
		page := read[mlsapi.GetMessagesOutput](t, a.ok())
		return len(page.Messages), page.Cursor
	}
	if n, next := pageOf(ask()); n != 3 || next != nil {
		t.Fatalf("a page of %d messages, cursor %v; want all 3", n, next)
	}
	release := w.server.TakePlaces(t)
	bob.get(mlsapi.NSIDGetMessages, "convoId", small.id).ok()
	answers := make(chan answer, 1)
	go func() { answers <- ask() }()
	w.waitForPlaces(1)
	release()
	n, next := pageOf(<-answers)
	if n != 1 || next == nil {
		t.Fatalf("a page of %d messages, cursor %v; want one, because there was no free place", n, next)
	}
	if n, next := pageOf(ask("sinceMessage", *next)); n != 2 || next != nil {
		t.Errorf("%d messages after the cursor, cursor %v; want 2", n, next)
	}
}

// While other expensive requests run, a claim waits. Messages, pages, cursors and Welcomes do not
// wait with it.
func TestCheapPassesExpensive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	bob.publish()
	c := alice.create(bob)
	release := w.server.HoldExpensive()
	claims := make(chan answer, 1)
	go func() { claims <- alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String()) }()
	for w.server.ExpensiveWaiting() < 1 && len(claims) == 0 {
		runtime.Gosched()
	}
	sent := alice.send(c, "hello")
	bob.page(c)
	bob.fetched(c)
	bob.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: *sent.Seq}).ok()
	if len(claims) > 0 {
		t.Error("the claim did not wait")
	}
	release()
	(<-claims).ok()
}

// A caller's claims wait for each other's lock in the database. Two of them hold connections,
// however long they wait, and others are served.
func TestClaimsBehindALock(t *testing.T) {
	t.Parallel()
	const claims = 12
	w := newWorld(t)
	mallory, alice, bob := w.user(), w.user(), w.user()
	alice.publish()
	c := bob.create()
	lock, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := pgpool.LockClaims.Wait(t.Context(), lock, mallory.did().String()); err != nil {
		t.Fatal(err)
	}
	answers := make(chan []answer)
	go func() {
		answers <- together(claims,
			func(int) answer { return mallory.get(mlsapi.NSIDGetKeyPackages, "dids", alice.did().String()) })
	}()
	for w.server.ExpensiveLate() < 2 {
		runtime.Gosched()
	}
	bob.claimed(alice)
	bob.send(c, "hello")
	if late, acquired := w.server.ExpensiveLate(), w.db.Stat().AcquiredConns(); late != 2 || acquired > 3 {
		t.Errorf("%d claims of one caller are late, and %d connections are in use", late, acquired)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, a := range <-answers {
		if a.status != http.StatusOK && a.status != http.StatusServiceUnavailable { // it waited for the lock for too long
			t.Errorf("a claim is answered with %d: %s", a.status, a.body)
		}
	}
}

// H3: connections that declare bodies and send nothing take no memory from those who send. 300
// declared bodies of 256 KiB would be all the memory.
func TestDeclaredBodiesTakeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.LimitBodies(64<<20, 32<<20)
	server := httptest.NewServer(w.server)
	t.Cleanup(server.Close)
	alice := w.user()
	c := alice.create()
	attackers := []*user{w.user(), w.user(), w.user()}
	for i := range 300 {
		conn := w.connect(server.Listener.Addr().String())
		_, err := fmt.Fprintf(conn,
			"POST /xrpc/%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Type: application/json\r\n"+
				"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", mlsapi.NSIDConfirmWelcome,
			attackers[i%3].authorization(mlsapi.NSIDConfirmWelcome), 256<<10)
		if err != nil {
			t.Fatal(err)
		}
		if i >= 250 {
			continue // with declared lengths there is no memory for these
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q, %v; want 100 Continue: the body is being read", line, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	w.ctx = ctx
	for range 5 {
		alice.send(c, "hello "+*newKey())
	}
	attackers[0].send(attackers[0].create(), "its own small ones pass too")
}

// H3: the rest of a refused body is read for a bounded time.
func TestDrainDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := httptest.NewRequest(http.MethodPost, "/xrpc/"+mlsapi.NSIDUpdateCursor,
		strings.NewReader(strings.Repeat("x", 300<<10)))
	r.Header.Set("Content-Type", "application/json")
	d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	w.server.ServeHTTP(d, r)
	if d.Code != http.StatusUnauthorized || len(d.read) < 2 || d.read[0].IsZero() ||
		time.Until(d.read[0]) > 10*time.Second {
		t.Fatalf("status %d, deadlines %v; want one for the body that nobody wants", d.Code, d.read)
	}
	if last := d.read[len(d.read)-1]; !last.IsZero() {
		t.Errorf("the deadline %v stays, though the whole body was read", last)
	}
}

// H5: openings of streams without an account are charged to the address, also if the client hangs
// up at once. They take no place in the queue of openings.
func TestUnauthenticatedOpenings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.rates.IP = api.Rate{PerSecond: 1e-3, Burst: 200} })
	w.pretend()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 400 {
		r := w.request(http.MethodGet, mlsapi.NSIDStreamConvoEvents, nil, nil, "").WithContext(gone)
		w.server.ServeHTTP(httptest.NewRecorder(), r)
	}
	a := w.do(http.MethodGet, mlsapi.NSIDStreamConvoEvents, nil, nil, "")
	a.fails(http.StatusTooManyRequests, "RateLimitExceeded")
}

// E12: a ticket that the rate limit of its DID refuses is not used up.
func TestRefusedTicketStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.rates.DID = api.Rate{PerSecond: 1e-3, Burst: 1} })
	w.pretend()
	alice := w.user()
	first, second := alice.ticket(), alice.ticket()
	if a := w.handshake(mlsapi.NSIDSubscribeConvoEvents, query("ticket", first),
		""); a.status != http.StatusSwitchingProtocols {
		t.Fatalf("%d %s", a.status, a.body)
	}
	w.handshake(mlsapi.NSIDSubscribeConvoEvents, query("ticket", second), "").fails(http.StatusTooManyRequests,
		"RateLimitExceeded")
	if holder, err := w.tickets.Owner(t.Context(), second, mlsapi.NSIDSubscribeConvoEvents); err != nil ||
		holder.DID != alice.did() {
		t.Errorf("the refused ticket: %+v, %v", holder, err)
	}
	if _, err := w.tickets.Owner(t.Context(), first, mlsapi.NSIDSubscribeConvoEvents); !errors.Is(err,
		events.ErrInvalidTicket) {
		t.Errorf("the used ticket: %v", err)
	}
}

// H13: a client's request id is used if it is short and has only characters of ids.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for id, used := range map[string]bool{
		"": false, "a-b_c~": true, "0192f3a5-0000-7000-8000-000000000001": true, "a b": false, `"forged"`: false,
		"<b>": false, strings.Repeat("x", 64): true, strings.Repeat("x", 65): false, strings.Repeat("x", 20_000): false,
		"caf\xc3\xa9": false, "tab\there": false,
	} {
		got := w.do(http.MethodGet, mlsapi.NSIDGetConvos, nil, nil, "", "X-Request-ID", id).header.Get("X-Request-Id")
		if got == "" || len(got) > 64 || used != (got == id) {
			t.Errorf("%.30q is answered with %.30q", id, got)
		}
	}
}

// A request costs what its method costs, and what its bytes cost. It pays if it fails, too. A debt
// is at most a whole bucket.
func TestCosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.rates.DID = api.Rate{PerSecond: 1e-3, Burst: 40} })
	alice := w.user()
	left := func(a answer) string { return a.header.Get("RateLimit-Remaining") }
	a := alice.post(mlsapi.NSIDCreateConvo, &mlsapi.CreateConvoInput{GroupID: "abcd", CipherSuite: "unknown"})
	if a.fails(http.StatusBadRequest, mlsapi.ErrInvalidCipherSuite); left(a) != "39" {
		t.Errorf("after a refused createConvo %s of 40 are left, want 39", left(a))
	}
	c := alice.create()
	in := alice.message(c, "")
	in.Ciphertext = mlstest.Message(c.group, c.epoch, strings.Repeat("x", 9<<20)) // 12 MiB in base64
	for range 3 {
		in.IdempotencyKey = newKey()
		in.Ciphertext = append(in.Ciphertext[:len(in.Ciphertext)-1], in.Ciphertext[len(in.Ciphertext)-1]+1)
		a = alice.post(mlsapi.NSIDSendMessage, in)
	}
	if a.ok(); left(a) != "0" {
		t.Errorf("after three messages of 13 units %s are left", left(a))
	}
	refused := alice.get(mlsapi.NSIDGetEpoch, "convoId", c.id)
	refused.fails(http.StatusTooManyRequests, "RateLimitExceeded")
	if reset := refused.header.Get("Retry-After"); len(reset) > 6 {
		t.Errorf("the debt is paid after %s s", reset)
	}
}
