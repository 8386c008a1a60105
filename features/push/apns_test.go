package push_test

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"mlsd/features/push"
	"mlsd/features/push/pushtest"
)

// token is a device token of APNs.
const token = "c0ffee0123456789c0ffee0123456789c0ffee0123456789c0ffee0123456789"

// apple is a server that speaks APNs: HTTP/2 over TLS.
type apple struct {
	*receiver
	key  *ecdsa.PrivateKey
	file string // of the key
}

func newApple(t *testing.T) *apple {
	t.Helper()
	key, file := pushtest.Key(t)
	a := &apple{receiver: &receiver{}, key: key, file: file}
	a.Server = httptest.NewUnstartedServer(a)
	a.EnableHTTP2 = true
	a.StartTLS()
	t.Cleanup(a.Close)
	return a
}

// config makes a worker call this server instead of Apple's.
func (a *apple) config(t *testing.T) func(*push.Config) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(a.Certificate())
	apns, err := push.NewAPNs(push.APNsKey{File: a.file, KeyID: "KEY", TeamID: "TEAM"}, a.URL, roots)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *push.Config) { c.APNs = apns }
}

// refuses makes the server refuse all calls for a reason.
func (a *apple) refuses(code int, reason string) {
	a.answers(func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(code)
		if err := json.NewEncoder(rw).Encode(map[string]string{"reason": reason}); err != nil {
			panic(err)
		}
	})
}

// iphone returns a bench on which bob has one device, an iPhone.
func iphone(t *testing.T) (*bench, *apple) {
	t.Helper()
	b, a := newBench(t), newApple(t)
	b.worker = b.newWorker(a.config(t))
	b.exec(`DELETE FROM push_targets`)
	b.register(push.Target{DID: bob, DeviceID: "iphone", Kind: push.KindAPNs, Address: token, Topic: "example.app",
		Environment: push.Sandbox})
	return b, a
}

// A call of APNs is HTTP/2, with a token of ours and the device, and carries no content.
func TestAPNs(t *testing.T) {
	t.Parallel()
	b, a := iphone(t)
	var proto string
	a.answers(func(_ http.ResponseWriter, r *http.Request) { proto = r.Proto })
	b.send("hello")
	b.run()
	calls, j := a.taken(), b.only()
	if len(calls) != 1 || j.State != "done" {
		t.Fatalf("%d calls, %+v", len(calls), j)
	}
	c := calls[0]
	if proto != "HTTP/2.0" || c.path != "/3/device/"+token || !json.Valid(c.body) ||
		!strings.Contains(string(c.body), `"loc-key":"new-message"`) {
		t.Errorf("%s %s %s", proto, c.path, c.body)
	}
	for name, want := range map[string]string{
		"apns-topic": "example.app", "apns-id": j.ID.String(), "apns-collapse-id": "mlsd",
		"Idempotency-Key": "mlsd-" + j.ID.String(),
	} {
		if got := c.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	bearer := strings.TrimPrefix(c.header.Get("Authorization"), "bearer ")
	parsed, err := jwt.Parse(bearer, func(*jwt.Token) (any, error) { return a.key.Public(), nil })
	if err != nil || parsed.Header["kid"] != "KEY" {
		t.Errorf("the token: %v", err)
	}
}

// The target of a device that Apple no longer knows is deleted, unless the device has registered
// another token since.
func TestBadDeviceTokenRemovesTarget(t *testing.T) {
	t.Parallel()
	for reason, code := range map[string]int{"BadDeviceToken": 400, "Unregistered": 410, "DeviceTokenNotForTopic": 400} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			b, a := iphone(t)
			a.refuses(code, reason)
			b.send("hello")
			b.run()
			if j := b.only(); j.State != "done" || !strings.Contains(j.Error, reason) ||
				b.count(`SELECT count(*) FROM push_targets`) != 0 {
				t.Fatalf("%+v", j)
			}
			b.send("hello")
			b.run()
			if calls := a.taken(); len(calls) != 1 {
				t.Fatalf("%d calls", len(calls))
			}
		})
	}
	t.Run("new token meanwhile", func(t *testing.T) {
		t.Parallel()
		b, a := iphone(t)
		a.answers(func(rw http.ResponseWriter, _ *http.Request) {
			b.register(push.Target{DID: bob, DeviceID: "iphone", Kind: push.KindAPNs, Address: "beef", Topic: "example.app",
				Environment: push.Sandbox})
			rw.WriteHeader(http.StatusGone)
		})
		b.send("hello")
		b.run()
		if n := b.count(`SELECT count(*) FROM push_targets WHERE address = 'beef'`); n != 1 {
			t.Fatal("the new token is forgotten")
		}
	})
}

// Apple's other refusals end the job, or are temporary.
func TestAPNsRefusals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		code          int
		reason, state string
	}{
		{400, "BadTopic", "dead"}, {400, "\x00\xff" + strings.Repeat("é", 150), "dead"}, {413, "PayloadTooLarge", "dead"},
		{403, "ExpiredProviderToken", "sending"},
		{429, "TooManyRequests", "sending"}, {500, "InternalServerError", "sending"}, {503, "Shutdown", "sending"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			t.Parallel()
			b, a := iphone(t)
			a.refuses(tc.code, tc.reason)
			b.send("hello")
			b.run()
			if j := b.only(); j.State != tc.state || (len(tc.reason) < 50 && !strings.Contains(j.Error, tc.reason)) ||
				b.count(`SELECT count(*) FROM push_targets`) != 1 {
				t.Fatalf("%+v", j)
			}
		})
	}
}

// A node without a key leaves APNs jobs to a node that has one.
func TestNodeWithoutKey(t *testing.T) {
	t.Parallel()
	b, a := iphone(t)
	b.send("hello")
	if err := b.newWorker().RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if j := b.only(); j.State != "sending" || j.Wait <= 0 {
		t.Fatalf("%+v", j)
	}
	b.due()
	b.run()
	if calls := a.taken(); len(calls) != 1 || b.only().State != "done" {
		t.Fatalf("%d calls, %+v", len(calls), b.only())
	}
}

func TestBadKey(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key.p8")
	for _, content := range []string{"", "not a key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := push.NewAPNs(push.APNsKey{File: file, KeyID: "KEY", TeamID: "TEAM"}, "", nil); err == nil {
			t.Errorf("%q is a key", content)
		}
	}
}
