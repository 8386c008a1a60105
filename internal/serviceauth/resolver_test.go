package serviceauth

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

// dialer returns a Dial for net.Resolver that always connects to address.
func dialer(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp4", address)
	}
}

// contextDone returns a cancelled context.
func contextDone(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx, cancel
}

// testDirectory returns a Directory whose PLC directory is handler. handler also serves the
// document of the did:web that it returns.
func testDirectory(t *testing.T, allowLoopback bool, handler http.HandlerFunc) (*CachedDirectory, syntax.DID) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	dir, err := NewDirectory(DirectoryConfig{PLCURL: server.URL, AllowLoopback: allowLoopback})
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return dir, syntax.DID("did:web:localhost%3A" + port)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	key := publicKey(t)
	var web syntax.DID
	dir, web := testDirectory(t, true, func(w http.ResponseWriter, r *http.Request) {
		did := syntax.DID(strings.TrimPrefix(r.URL.Path, "/"))
		if r.URL.Path == "/.well-known/did.json" {
			did = syntax.DID("did:web:localhost%3A" + r.Host[strings.LastIndexByte(r.Host, ':')+1:])
		}
		ident := identity.Identity{DID: did, Keys: map[string]identity.VerificationMethod{
			"atproto":       {Type: "Multikey", PublicKeyMultibase: key.Multibase()},
			"atproto_label": {Type: "Multikey", PublicKeyMultibase: publicKey(t).Multibase()},
		}}
		_ = json.NewEncoder(w).Encode(ident.DIDDocument())
	})
	for _, did := range []syntax.DID{alice, web} {
		got, err := dir.Resolve(t.Context(), did)
		if err != nil || !got.Equal(key) {
			t.Errorf("%s: %v, %v", did, got, err)
		}
	}
}

// Each unusable answer of a source gives ErrIssuer, or an error after which a later look-up may
// succeed.
func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	multibase := publicKey(t).Multibase()
	doc := func(id syntax.DID, fragment, typ, controller, key string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"id":%q,"verificationMethod":[{"id":"%s%s","type":%q,"controller":%q,"publicKeyMultibase":%q}]}`,
				id, id, fragment, typ, controller, key)
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		certain bool // ErrIssuer, else an error that may be temporary
	}{
		"not found":        {status(404), true},
		"tombstone":        {status(410), true},
		"server error":     {status(500), false},
		"too many":         {status(429), false},
		"another DID":      {doc(alice[:31]+"b", "#atproto", "Multikey", alice.String()[:31]+"b", multibase), true},
		"no key":           {doc(alice, "#other", "Multikey", alice.String(), multibase), true},
		"controlled by x":  {doc(alice, "#atproto", "Multikey", "did:plc:x", multibase), true},
		"unknown key type": {doc(alice, "#atproto", "Ed25519VerificationKey2020", alice.String(), multibase), true},
		"key is garbage":   {doc(alice, "#atproto", "Multikey", alice.String(), "zzzz"), true},
		"old type, short":  {doc(alice, "#atproto", "EcdsaSecp256k1VerificationKey2019", alice.String(), "z1"), true},
		"not JSON":         {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, true},
		"empty":            {status(200), true},
		"hangs up":         {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false},
		"huge header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", maxResponseHeader+1))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _ := testDirectory(t, false, tc.handler)
			key, err := dir.Resolve(t.Context(), alice)
			if key != nil || err == nil || errors.Is(err, ErrIssuer) != tc.certain {
				t.Errorf("Resolve = %v, %v; ErrIssuer: want %t", key, err, tc.certain)
			}
		})
	}
}

// A body of 1 GiB is not read to its end, plain or compressed, with any status.
func TestEndlessBodyIsCut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wrap func(http.ResponseWriter) io.Writer
		size int64
		most int64 // bytes that the host can send, with those in socket buffers
	}{
		"plain":    {func(w http.ResponseWriter) io.Writer { return w }, 1 << 30, 64 << 20},
		"an error": {func(w http.ResponseWriter) io.Writer { w.WriteHeader(500); return w }, 1 << 30, 64 << 20},
		"gzip": {func(w http.ResponseWriter) io.Writer {
			w.Header().Set("Content-Encoding", "gzip")
			return gzip.NewWriter(w)
		}, 128 << 20, 128 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			done := make(chan struct{})
			dir, web := testDirectory(t, true, func(w http.ResponseWriter, r *http.Request) {
				defer close(done)
				if got := r.Header.Get("Accept-Encoding"); got != "" {
					t.Errorf("asked for %s", got)
				}
				body, chunk := tc.wrap(w), make([]byte, 64<<10)
				for sent.Load() < tc.size {
					n, err := body.Write(chunk)
					if err != nil {
						return
					}
					sent.Add(int64(n))
				}
			})
			if key, err := dir.Resolve(t.Context(), web); key != nil || err == nil {
				t.Errorf("Resolve = %v, %v", key, err)
			}
			<-done
			if got := sent.Load(); got > tc.most {
				t.Errorf("%d bytes sent", got)
			}
		})
	}
}

// A redirect is not followed, to loopback or anywhere.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer target.Close()
	dir, web := testDirectory(t, true, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, target.URL, http.StatusFound)
	})
	for _, did := range []syntax.DID{alice, web} {
		if key, err := dir.Resolve(t.Context(), did); key != nil || err == nil {
			t.Errorf("%s: %v, %v", did, key, err)
		}
	}
	if reached.Load() {
		t.Error("followed")
	}
}

// These hosts are refused without a look-up.
func TestWebHosts(t *testing.T) {
	t.Parallel()
	r := &resolver{}
	for _, id := range []string{
		"localhost%3A8080", "localhost", "127.0.0.1", "a.localhost", "printer.local", "db.internal", "x.onion", "x.alt",
		"example.com%3A8443", "example.com:path", "example.com/x", "example.com%2Fx", "user@example.com", "", "com",
	} {
		if l, err := r.webLookup(id); !errors.Is(err, ErrIssuer) {
			t.Errorf("%q: %v, %v; want ErrIssuer", id, l, err)
		}
	}
	if l, err := r.webLookup("example.com"); err != nil || l.url != "https://example.com/.well-known/did.json" {
		t.Errorf("example.com: %v, %v", l, err)
	}
}

func TestPLCURL(t *testing.T) {
	t.Parallel()
	for u, want := range map[string]bool{
		"":                             true,
		"https://plc.directory":        true,
		"https://plc.directory/":       true,
		"https://10.0.0.5:2582":        true,
		"http://localhost:2582":        true,
		"http://127.0.0.1:2582":        true,
		"http://[::1]:2582":            true,
		"http://plc.directory":         false,
		"http://127.0.0.1.example.com": false,
		"https://plc.directory/x":      false,
		"https://u:p@plc.directory":    false,
		"https://plc.directory?x=1":    false,
		"ftp://localhost":              false,
		"plc.directory":                false,
		"https://":                     false,
		"http://%zz":                   false,
	} {
		if _, err := NewDirectory(DirectoryConfig{PLCURL: u}); (err == nil) != want {
			t.Errorf("%q: %v, want accepted: %t", u, err, want)
		}
	}
}
