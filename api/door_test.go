package api_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/internal/serviceauth"
)

// A request that the rate limit refuses does not use up its token, and so costs no row.
func TestRefusedTokensCostNoRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.rates.DID = api.Rate{PerSecond: 1e-3, Burst: 1} })
	alice := w.user()
	for range 5 {
		alice.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: uuid.NewString()})
	}
	if n := w.count(`SELECT count(*) FROM used_tokens`); n != 1 {
		t.Fatalf("%d tokens are remembered, want the one that got through", n)
	}
}

// A token is good for one procedure call. A second call with it is refused, even if it differs or
// goes to another node. Of two calls at once, one passes.
func TestTokenIsUsedOnce(t *testing.T) {
	t.Parallel()
	each(t, keyed, newKey, func(t *testing.T, w *world, r request) {
		if r.in == nil {
			return // a query's token is not used up, because a PDS can send the query again
		}
		authorization := r.by.authorization(r.nsid)
		call := func(node *api.Server) answer {
			return w.answer(node, w.request(http.MethodPost, r.nsid, nil, encode(r.in), authorization))
		}
		call(w.server).ok()
		for _, node := range []*api.Server{w.server, w.boot()} {
			if message := call(node).fails(http.StatusUnauthorized, "InvalidToken"); !strings.HasPrefix(message,
				"token was used before: ") {
				t.Errorf("message %q", message)
			}
		}
		r.once()

		authorization = r.by.authorization(r.nsid)
		var refused atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if call(w.server).status == http.StatusUnauthorized {
					refused.Add(1)
				}
			})
		}
		wg.Wait()
		if n := refused.Load(); n != 9 {
			t.Errorf("of ten calls at once with one token %d were refused", n)
		}
	})
}

// One caller's endless uploads leave memory for all callers' messages, and for its own.
func TestSlowUploads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, mallory := w.user(), w.user()
	c := alice.create()
	server := httptest.NewServer(w.server)
	defer server.Close()
	for i := range 20 {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}()
		_, err = fmt.Fprintf(conn,
			"POST /xrpc/%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Type: application/json\r\n"+
				"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", mlsapi.NSIDSendMessage,
			mallory.authorization(mlsapi.NSIDSendMessage), 14<<20)
		if err != nil {
			t.Fatal(err)
		}
		if i > 1 {
			continue // it waits for the memory of the first two uploads
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q, %v; want 100 Continue: there is memory, and the body is being read", line, err)
		}
	}
	first, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}()
	body := encode(alice.message(c, "hello"))
	_, err = fmt.Fprintf(first,
		"POST /xrpc/%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Type: application/json\r\nContent-Length: "+
			"%d\r\n\r\n%s",
		mlsapi.NSIDSendMessage, alice.authorization(mlsapi.NSIDSendMessage), len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(first), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%d %s, %v", answer.StatusCode, text, err)
	}
	alice.send(c, "and again")
	mallory.get(mlsapi.NSIDGetConvos).ok()
}

// A handler that panics releases the memory reserved for its answer, so that panics do not use up
// the caller's share.
func TestPanicReleasesItsMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	auth, err := serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(service), Directory: w.directory, Replays: serviceauth.NewUsedTokens(w.db),
	})
	if err != nil {
		t.Fatal(err)
	}
	broken, err := api.New(complete(api.Config{ // without a service of Welcomes, getWelcome panics
		DB: w.db, Auth: auth, Metrics: api.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
		Rates: w.rates, ServiceDID: service,
		PublicURL: "https://mls.example.com",
	}))
	if err != nil {
		t.Fatal(err)
	}
	for range 17 { // more answers than fit into one caller's share
		r := httptest.NewRequest(http.MethodGet, "/xrpc/"+mlsapi.NSIDGetWelcome+"?convoId="+uuid.NewString(), nil)
		r.Header.Set("Authorization", alice.authorization(mlsapi.NSIDGetWelcome))
		rec := httptest.NewRecorder()
		broken.ServeHTTP(rec, r)
		if rec.Code != http.StatusInternalServerError {
			t.Fatalf("status %d: %s", rec.Code, rec.Body)
		}
	}
}

// deadlines records what a handler does to the connection.
type deadlines struct {
	*httptest.ResponseRecorder
	read []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.read = append(d.read, t)
	return nil
}

// An upload has a deadline. The deadline is removed after the upload, so that it does not end the
// request while it is answered.
func TestUploadDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	r := httptest.NewRequest(http.MethodPost, "/xrpc/"+mlsapi.NSIDUpdateCursor,
		strings.NewReader(`{"convoId":"`+uuid.NewString()+`","seq":1}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", alice.authorization(mlsapi.NSIDUpdateCursor))
	d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	w.server.ServeHTTP(d, r)
	if d.Code != http.StatusNotFound || len(d.read) != 2 || d.read[0].IsZero() || !d.read[1].IsZero() {
		t.Fatalf("status %d, deadlines %v; want one for the body and then none", d.Code, d.read)
	}
}
