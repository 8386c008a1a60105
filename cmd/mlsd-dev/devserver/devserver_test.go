package devserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/identity"
)

const serviceDID = "did:web:localhost%3A8080"

// fixture is a Server before a service that answers every request with its method and counts them.
type fixture struct {
	t      *testing.T
	url    string
	served atomic.Int64
	resets atomic.Int64
	broken error // of the next reset
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t}
	service := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.served.Add(1)
		_, _ = io.WriteString(w, r.URL.Path)
		if streams(r) { // until the connection ends
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	s := New(Config{
		ServiceDID: serviceDID, Version: "test", Service: service, Log: slog.New(slog.DiscardHandler),
		Database: func() string { return "postgres:///dev?host=/run&port=1" },
		OwnHost:  func(r *http.Request) bool { return strings.HasPrefix(r.Host, "127.0.0.1:") },
		Reset:    func(context.Context) error { f.resets.Add(1); return f.broken },
	})
	server := httptest.NewUnstartedServer(s)
	server.Config.ConnContext = ConnContext
	server.Start()
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

// do sends a request and returns status, header and body, or the error of the connection.
func (f *fixture) do(verb, path, body string, header ...string) (int, http.Header, string, error) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), verb, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(answer), err
}

// ask sends a request that must be answered with want, and decodes the answer.
func ask[T any](f *fixture, want int, verb, path, body string) (v T) {
	f.t.Helper()
	status, _, answer, err := f.do(verb, path, body)
	if err != nil || status != want {
		f.t.Fatalf("%s %s %s: %d %s %v, want %d", verb, path, body, status, answer, err, want)
	}
	d := json.NewDecoder(bytes.NewReader([]byte(answer)))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		f.t.Fatalf("%s %s: %s: %v", verb, path, answer, err)
	}
	return v
}

func (f *fixture) refuses(status int, text, verb, path, body string) {
	f.t.Helper()
	if e := ask[errorBody](f, status, verb, path, body); !strings.Contains(e.Error+": "+e.Message, text) {
		f.t.Errorf("%s %s %s: %+v, want %q", verb, path, body, e, text)
	}
}

// call calls a method of the service as somebody. It is a POST, because net/http repeats a GET by
// itself if the connection closes.
func (f *fixture) call(method, token string) (int, string, error) {
	f.t.Helper()
	status, _, answer, err := f.do(http.MethodPost, "/xrpc/"+method, "{}", "Authorization", "Bearer "+token)
	return status, answer, err
}

func (f *fixture) account() Account {
	f.t.Helper()
	return ask[Accounts](f, 200, "POST", "/dev/accounts", "").Accounts[0]
}

func (f *fixture) token(did, lxm string) string {
	f.t.Helper()
	return ask[Token](f, 200, "POST", "/dev/token", `{"did":"`+did+`","lxm":"`+lxm+`"}`).Token
}

func TestAccounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alice := ask[Accounts](f, 200, "POST", "/dev/accounts", `{"handle":"Alice"}`).Accounts[0]
	if alice.Handle != "alice.test" {
		t.Errorf("handle %q", alice.Handle)
	}
	f.refuses(409, "HandleTaken", "POST", "/dev/accounts", `{"handle":"alice"}`)
	ask[Accounts](f, 200, "POST", "/dev/accounts", `{"handle":"user4.test"}`)
	many := ask[Accounts](f, 200, "POST", "/dev/accounts", `{"count":3}`).Accounts
	all := ask[Accounts](f, 200, "GET", "/dev/accounts", "").Accounts
	if len(many) != 3 || len(all) != 5 || all[0] != alice || all[4] != many[2] {
		t.Errorf("made %v, listed %v", many, all)
	}
	// The signing key is the private half of the document's, of either curve.
	for _, a := range all {
		doc := ask[identity.DIDDocument](f, 200, "GET", "/"+a.DID.String(), "")
		private, err := atcrypto.ParsePrivateMultibase(a.SigningKey)
		if err != nil {
			t.Fatal(err)
		}
		public, err := private.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		ident := identity.ParseIdentity(&doc)
		documented, err := ident.PublicKey()
		if err != nil || !documented.Equal(public) || doc.DID != a.DID || ident.AlsoKnownAs[0] != "at://"+a.Handle.String() {
			t.Errorf("document of %s: %+v, %v", a.Handle, doc, err)
		}
	}
	f.refuses(404, "AccountNotFound", "GET", "/did:plc:ewvi7nxzyoun6zhxrhs64oiz", "")
	for body, text := range map[string]string{
		`{"count":0}`:               "count",
		`{"count":1001}`:            "count",
		`{"count":2,"handle":"a"}`:  "count",
		`{"handle":"not a handle"}`: "handle",
		`{"handel":"a"}`:            `unknown field "handel"`,
		`{}{}`:                      "follows",
		`[`:                         "the body",
	} {
		f.refuses(400, text, "POST", "/dev/accounts", body)
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.account()
	got := ask[Token](f, 200, "POST", "/dev/token",
		`{"did":"`+a.DID.String()+`","lxm":"blue.catbird.mls.getConvos","aud":"did:web:other.example","exp":1000000000}`)
	c, err := claimsOf(got.Token)
	if err != nil || c.Iss != a.DID || got.Aud != "did:web:other.example" || got.Exp != 1_000_000_000 || c.Exp != got.Exp {
		t.Errorf("token %+v with %+v, %v", got, c, err)
	}
	got = ask[Token](f, 200, "POST", "/dev/token", `{"did":"`+a.DID.String()+`","lxm":"blue.catbird.mls.getConvos"}`)
	if left := time.Until(time.Unix(got.Exp, 0)); got.Aud != serviceDID || left < 30*time.Second || left > time.Minute {
		t.Errorf("token %+v", got)
	}
	f.refuses(404, "AccountNotFound", "POST", "/dev/token",
		`{"did":"did:plc:ewvi7nxzyoun6zhxrhs64oiz","lxm":"blue.catbird.mls.getConvos"}`)
	f.refuses(400, "NSID", "POST", "/dev/token", `{"did":"`+a.DID.String()+`","lxm":"getConvos"}`)
	f.refuses(400, "lxm", "POST", "/dev/token", `{"did":"`+a.DID.String()+`"}`)
}

// A reset forgets accounts and faults. If the service cannot be reset, it says so.
func TestReset(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.account()
	ask[PlannedFault](f, 200, "POST", "/dev/faults", `{"kind":"cut"}`)
	ask[struct{}](f, 200, "POST", "/dev/reset", "{}")
	if f.resets.Load() != 1 || len(ask[Accounts](f, 200, "GET", "/dev/accounts", "").Accounts) != 0 ||
		len(ask[Faults](f, 200, "GET", "/dev/faults", "").Faults) != 0 {
		t.Error("something was not forgotten")
	}
	f.refuses(404, "AccountNotFound", "GET", "/"+a.DID.String(), "")
	f.broken = errors.New("no database")
	f.refuses(500, "no database", "POST", "/dev/reset", "{}")
}

// Finding S8: a page whose name now resolves to this machine gets no key, no token and no reset. It
// may call the service, as it may any service.
func TestForeignNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alice := f.account()
	for _, c := range [][3]string{
		{"GET", "/dev", ""}, {"GET", "/dev/accounts", ""}, {"POST", "/dev/accounts", "{}"},
		{"POST", "/dev/token", `{"did":"` + alice.DID.String() + `","lxm":"x.y.z"}`}, {"POST", "/dev/reset", "{}"},
		{"DELETE", "/dev/faults", ""}, {"GET", "/dev/devices", ""}, {"GET", "/" + alice.DID.String(), ""},
	} {
		status, _, answer, err := f.do(c[0], c[1], c[2], "Host", "evil.example:8080")
		if status != http.StatusForbidden || err != nil || strings.Contains(answer, alice.SigningKey) {
			t.Errorf("%s %s: %d %s %v", c[0], c[1], status, answer, err)
		}
	}
	if n := f.resets.Load(); n != 0 {
		t.Errorf("%d resets", n)
	}
	if status, _, _, err := f.do("GET", "/xrpc/_health", "", "Host", "evil.example"); status != 200 || err != nil {
		t.Errorf("the service: %d %v", status, err)
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if in := ask[Info](f, 200, "GET", "/dev", ""); in.Aud != serviceDID || in.DID != serviceDID || in.Version != "test" ||
		in.Database != "postgres:///dev?host=/run&port=1" || in.URL != f.url || in.Directory != f.url {
		t.Errorf("info %+v", in)
	}
	f.refuses(404, "NotFound", "GET", "/dev/nothing", "")
	f.refuses(404, "NotFound", "DELETE", "/dev/accounts", "")
	for _, path := range []string{"/xrpc/_health", "/.well-known/did.json"} {
		if status, _, answer, err := f.do("GET", path, ""); status != 200 || answer != path || err != nil {
			t.Errorf("%s: %d %s %v", path, status, answer, err)
		}
	}
	// A page of another origin, in a browser on this machine, must not use /dev.
	if status, _, _, err := f.do("POST", "/dev/reset", "{}", "Origin", "https://evil.example"); status != 403 ||
		err != nil || f.resets.Load() != 0 {
		t.Errorf("a reset from another origin: %d %v", status, err)
	}
}

// An account's record names the service that it has chosen. Only the account changes it.
func TestProfile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alice, bob := f.account(), f.account()
	chosen := func() any {
		f.t.Helper()
		record := ask[ShownRecord](f, 200, "GET",
			"/xrpc/com.atproto.repo.getRecord?repo="+alice.DID.String()+"&collection=blue.catbird.mls.profile&rkey=self", "")
		return record.Value["deliveryService"]
	}
	if got := chosen(); got != serviceDID {
		t.Errorf("she begins at %v", got)
	}
	put := func(as Account, collection, service string) int {
		f.t.Helper()
		token := ask[Token](f, 200, "POST", "/dev/token",
			`{"did":"`+as.DID.String()+`","lxm":"com.atproto.repo.putRecord"}`)
		status, _, _, err := f.do("POST", "/xrpc/com.atproto.repo.putRecord",
			`{"repo":"`+alice.DID.String()+`","collection":"`+collection+`","rkey":"self","record":{`+
				`"$type":"blue.catbird.mls.profile","deliveryService":"`+service+`","createdAt":"2026-11-27T12:00:00Z"}}`,
			"Authorization", "Bearer "+token.Token)
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	const profile, other = "blue.catbird.mls.profile", "did:web:other.example"
	for name, status := range map[string]int{
		"bob":                put(bob, profile, other),
		"another collection": put(alice, "app.bsky.actor.profile", other),
		"no DID":             put(alice, profile, "other.example"),
	} {
		if status < 400 || status >= 500 || chosen() != serviceDID {
			t.Errorf("%s: %d, and she is at %v", name, status, chosen())
		}
	}
	if status := put(alice, profile, other); status != 200 || chosen() != other {
		t.Errorf("status %d, and she is at %v", status, chosen())
	}
}
