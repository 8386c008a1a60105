package serviceauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

// network is a PLC directory, a PDS and a delivery service on one host.
type network struct {
	*CachedDirectory
	now     atomic.Int64 // seconds
	asked   atomic.Int64
	down    atomic.Bool
	record  atomic.Value // func(http.ResponseWriter)
	pds     atomic.Value // string: the #atproto_pds of people
	service atomic.Value // string: the #atproto_mls of the service
	names   atomic.Value // string: the DID that the service's host names
	url     string
}

const (
	mls    syntax.DID = "did:plc:mlsmlsmlsmlsmlsmlsmlsmls" // the service
	nobody syntax.DID = "did:plc:nobodynobodynobodynobody"
)

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{}
	key := publicKey(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.asked.Add(1)
		if n.down.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/xrpc/com.atproto.repo.getRecord") {
			q := r.URL.Query()
			if q.Get("collection") != ProfileNSID || q.Get("rkey") != "self" || q.Get("repo") != alice.String() {
				t.Errorf("asked for %v", q)
			}
			n.record.Load().(func(http.ResponseWriter))(w)
			return
		}
		if r.URL.Path == "/.well-known/did.json" {
			_, _ = fmt.Fprintf(w, `{"id":%q}`, n.names.Load())
			return
		}
		did := syntax.DID(strings.TrimPrefix(r.URL.Path, "/"))
		doc := identity.DIDDocument{DID: did}
		signs := identity.DocVerificationMethod{Type: "Multikey", Controller: did.String(),
			PublicKeyMultibase: key.Multibase()}
		switch did {
		case mls:
			for _, id := range []string{"#mls_service_7", "#atproto"} {
				signs.ID = did.String() + id
				doc.VerificationMethod = append(doc.VerificationMethod, signs)
			}
			doc.Service = []identity.DocService{{ID: "#atproto_mls", Type: "AtprotoMlsService",
				ServiceEndpoint: n.service.Load().(string)}}
		case alice:
			doc.Service = []identity.DocService{{ID: "#atproto_pds", Type: "AtprotoPersonalDataServer",
				ServiceEndpoint: n.pds.Load().(string)}}
		default:
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(doc)
	}))
	t.Cleanup(server.Close)
	n.url = server.URL
	n.pds.Store(server.URL)
	n.names.Store(mls.String())
	n.service.Store(server.URL + "/")
	n.answer(http.StatusOK, fmt.Sprintf(`{"uri":"at://…","value":{"deliveryService":%q}}`, mls))
	var err error
	n.CachedDirectory, err = NewDirectory(DirectoryConfig{PLCURL: server.URL, AllowLoopback: true,
		Now: func() time.Time { return time.Unix(n.now.Load(), 0) }})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// answer makes the PDS answer so.
func (n *network) answer(status int, body string) {
	n.record.Store(func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
}

func TestServiceOfANetwork(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s, err := n.Services().Service(t.Context(), mls, Remembered)
	if err != nil || s.DID != mls || s.Endpoint != n.url || len(s.Keys) != 1 || s.Keys["#mls_service_7"] == nil {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := n.Services().Service(t.Context(), alice, Remembered); !errors.Is(err, ErrNoService) {
		t.Errorf("an account: %v", err)
	}
	if _, err := n.Services().Service(t.Context(), nobody, Remembered); !errors.Is(err, ErrNoService) {
		t.Errorf("nobody: %v", err)
	}
	for _, endpoint := range []string{"", "ftp://mls.example.com", "https://mls.example.com:444", "https://10.0.0.1",
		"https://u:p@mls.example.com", "https://mls.example.com/path", "https://mls.example.com?x",
		"https://localhost.internal"} {
		n := newNetwork(t)
		n.service.Store(endpoint)
		if s, err := n.Services().Service(t.Context(), mls, Remembered); !errors.Is(err, ErrNoService) {
			t.Errorf("%q: %+v, %v", endpoint, s, err)
		}
	}
}

func TestHome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		want   syntax.DID
		fails  bool
	}{
		"a record":               {200, fmt.Sprintf(`{"value":{"deliveryService":%q}}`, mls), mls, false},
		"no record":              {400, `{"error":"RecordNotFound"}`, "", false},
		"no such method":         {404, "", "", false},
		"not JSON":               {200, "<html>", "", false},
		"no DID":                 {200, `{"value":{"deliveryService":"mls.example.com"}}`, "", false},
		"a fragment":             {200, fmt.Sprintf(`{"value":{"deliveryService":"%s#x"}}`, mls), "", false},
		"another type":           {200, `{"value":{"deliveryService":7}}`, "", false},
		"too long":               {200, `"` + strings.Repeat("x", maxDocument) + `"`, "", false},
		"the PDS fails":          {500, "", "", true},
		"the PDS sends us away":  {302, "", "", true},
		"the PDS says too often": {429, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.answer(c.status, c.body)
			got, err := n.Services().Home(t.Context(), alice, Remembered)
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	n := newNetwork(t)
	if got, err := n.Services().Home(t.Context(), nobody, Remembered); got != "" || err != nil {
		t.Errorf("nobody: %q, %v", got, err)
	}
	n.pds.Store("http://10.0.0.1")
	if got, err := n.Services().Home(t.Context(), alice, Remembered); got != "" || err != nil {
		t.Errorf("a PDS on a private address: %q, %v", got, err)
	}
}

// What was found is remembered for an hour, that there is nothing for two minutes, and a failure for
// five seconds. A look-up that fails never makes an old answer true.
func TestServicesAreRemembered(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	check := func(want syntax.DID, wantErr bool, asked int64) {
		t.Helper()
		before := n.asked.Load()
		got, err := n.Services().Home(t.Context(), alice, Remembered)
		if got != want || (err != nil) != wantErr || n.asked.Load()-before != asked {
			t.Errorf("got %q, %v; asked %d times and not %d", got, err, n.asked.Load()-before, asked)
		}
	}
	after := func(d time.Duration) { n.now.Add(int64(d / time.Second)) }
	check(mls, false, 2)
	check(mls, false, 0)
	after(keyFresh - time.Second)
	check(mls, false, 0)
	n.down.Store(true)
	after(time.Second)
	check("", true, 1) // the DID document fails
	check("", true, 0)
	n.down.Store(false)
	n.answer(400, `{"error":"RecordNotFound"}`)
	after(failedFor)
	check("", false, 2)
	after(noKeyFor - time.Second)
	check("", false, 0)
	n.answer(200, fmt.Sprintf(`{"value":{"deliveryService":%q}}`, mls))
	if err := n.Forget(t.Context(), alice); err != nil { // the relay says that the account has changed
		t.Fatal(err)
	}
	check(mls, false, 2)

	// A key that is not known causes one look-up in a minute.
	for _, want := range []int64{2, 0, 0} {
		before := n.asked.Load()
		if _, err := n.Services().Service(t.Context(), mls, Recent); err != nil {
			t.Fatal(err)
		}
		if got := n.asked.Load() - before; got != want {
			t.Errorf("%d look-ups, want %d", got, want)
		}
	}
	after(Recent)
	before := n.asked.Load()
	if _, err := n.Services().Service(t.Context(), mls, Recent); err != nil || n.asked.Load() != before+2 {
		t.Errorf("after a minute: %d look-ups, %v", n.asked.Load()-before, err)
	}
}

// While a service's host fails, a question for a key that is not known fails, and loses nothing of
// what is remembered. Anybody can ask it, with a receipt that names another key.
func TestRefreshOfAFailingService(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	if _, err := n.Services().Service(t.Context(), mls, Remembered); err != nil {
		t.Fatal(err)
	}
	n.down.Store(true)
	n.now.Add(int64(Recent / time.Second))
	for _, want := range []int64{1, 0, 0} {
		before := n.asked.Load()
		if s, err := n.Services().Service(t.Context(), mls, Recent); err == nil {
			t.Errorf("refreshed: %+v", s)
		}
		if got := n.asked.Load() - before; got != want {
			t.Errorf("%d look-ups, want %d", got, want)
		}
		n.now.Add(1)
	}
	if s, err := n.Services().Service(t.Context(), mls, Remembered); err != nil || s.Keys["#mls_service_7"] == nil {
		t.Errorf("afterwards: %+v, %v", s, err)
	}
}

// N6, N7: a service has the domain of its endpoint, whose host must name it. Nobody else's address is
// called because a DID document names it.
func TestDomainOfAService(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s, err := n.Services().Service(t.Context(), mls, Remembered)
	if want := strings.TrimPrefix(n.url, "http://"); err != nil || s.Domain != want {
		t.Errorf("the domain is %q, %v; want %q", s.Domain, err, want)
	}
	n.names.Store("did:web:honest.example.com")
	if s, err := n.Services().Service(t.Context(), mls, Now); !errors.Is(err, ErrNoService) {
		t.Errorf("another's host: %+v, %v", s, err)
	}
}

// What destroys has a look-up of its own: neither what is remembered nor a failure stands for it. A
// failure leaves what is remembered for less.
func TestNowIsNow(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	if _, err := n.Services().Home(t.Context(), alice, Remembered); err != nil {
		t.Fatal(err)
	}
	n.answer(200, `{"value":{"deliveryService":"did:web:new.example.com"}}`)
	if got, err := n.Services().Home(t.Context(), alice, Remembered); got != mls || err != nil {
		t.Errorf("remembered: %q, %v", got, err)
	}
	if got, err := n.Services().Home(t.Context(), alice, Now); got != "did:web:new.example.com" || err != nil {
		t.Errorf("now: %q, %v", got, err)
	}
	n.answer(200, fmt.Sprintf(`{"value":{"deliveryService":%q}}`, mls))
	if got, err := n.Services().Home(t.Context(), alice, Now); got != mls || err != nil {
		t.Errorf("at once again: %q, %v", got, err)
	}
	n.down.Store(true)
	for range 2 {
		before := n.asked.Load()
		if got, err := n.Services().Home(t.Context(), alice, Now); err == nil || n.asked.Load() != before+1 {
			t.Errorf("while the host fails: %q", got)
		}
	}
	if got, err := n.Services().Home(t.Context(), alice, Remembered); got != mls || err != nil {
		t.Errorf("remembered, while the host fails: %q, %v", got, err)
	}
}
