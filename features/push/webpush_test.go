package push_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"mlsd/features/push"
	"mlsd/features/push/pushtest"
)

const contact = "https://mlsd.example.com" // of the operator

// browser is a device that has subscribed at a push service.
type browser struct {
	*receiver // the push service
	vapid     push.VAPIDKey
	private   *ecdh.PrivateKey
	auth      []byte
}

// subscribed returns a bench on which bob has a browser as well. Its push service answers 201.
func subscribed(t *testing.T) (*bench, *browser) {
	t.Helper()
	w := &browser{receiver: newReceiver(t), vapid: vapidKey(t), private: must(ecdh.P256().GenerateKey(rand.Reader))(t),
		auth: []byte(rand.Text()[:16])}
	w.answers(status(http.StatusCreated))
	b := newBench(t, func(c *push.Config) { c.WebPush = push.NewWebPush(w.vapid, contact, true) })
	b.exec(`DELETE FROM push_targets`)
	b.register(w.target())
	return b, w
}

func (w *browser) target() push.Target {
	return push.Target{DID: bob, DeviceID: "browser", Kind: push.KindWebPush, Address: w.URL + "/sub/1",
		P256dh: w.private.PublicKey().Bytes(), Auth: w.auth}
}

// vapidKey reads a new key from a file as an operator has it.
func vapidKey(t *testing.T) push.VAPIDKey {
	t.Helper()
	_, file := pushtest.Key(t)
	return must(push.ReadVAPIDKey(file))(t)
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// open decrypts the body of a call as a browser does: RFC 8188, with the keys of RFC 8291.
func (w *browser) open(t *testing.T, body []byte) string {
	t.Helper()
	salt, keyID, sealed := body[:16], body[21:21+65], body[21+65:]
	if body[20] != 65 {
		t.Fatalf("the key's id has %d bytes", body[20])
	}
	shared := must(w.private.ECDH(must(ecdh.P256().NewPublicKey(keyID))(t)))(t)
	info := slices.Concat([]byte("WebPush: info\x00"), w.private.PublicKey().Bytes(), keyID)
	secret := must(hkdf.Key(sha256.New, shared, w.auth, string(info), 32))(t)
	key := must(hkdf.Key(sha256.New, secret, salt, "Content-Encoding: aes128gcm\x00", 16))(t)
	nonce := must(hkdf.Key(sha256.New, secret, salt, "Content-Encoding: nonce\x00", 12))(t)
	gcm := must(cipher.NewGCM(must(aes.NewCipher(key))(t)))(t)
	plain := must(gcm.Open(nil, nonce, sealed, nil))(t)
	text, padding, found := strings.Cut(string(plain), "\x02")
	if !found || strings.Trim(padding, "\x00") != "" {
		t.Fatalf("padding %q", padding)
	}
	return text
}

// A call is encrypted for the browser, signed for its push service, and says nothing: only the
// browser can read that there is a message, and all calls have one size and one topic.
func TestWebPush(t *testing.T) {
	t.Parallel()
	b, w := subscribed(t)
	b.send("hello")
	b.run()
	calls, j := w.taken(), b.only()
	if len(calls) != 1 || j.State != "done" {
		t.Fatalf("%d calls, %+v", len(calls), j)
	}
	c := calls[0]
	if got := w.open(t, c.body); got != `{"type":"message"}` || len(c.body) != 256 || c.path != "/sub/1" {
		t.Errorf("%s, %d bytes, to %s", got, len(c.body), c.path)
	}
	for name, want := range map[string]string{
		"Content-Encoding": "aes128gcm", "TTL": "604800", "Topic": "mlsd", "Urgency": "high",
	} {
		if got := c.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	bearer, key, _ := strings.Cut(strings.TrimPrefix(c.header.Get("Authorization"), "vapid t="), ", k=")
	if want := base64.RawURLEncoding.EncodeToString(w.vapid.Public()); key != want {
		t.Errorf("the key %s, want %s", key, want)
	}
	public := must(ecdsa.ParseUncompressedPublicKey(elliptic.P256(), w.vapid.Public()))(t)
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(bearer, claims, func(*jwt.Token) (any, error) { return public, nil })
	if err != nil || claims["aud"] != w.URL || claims["sub"] != contact {
		t.Errorf("the token: %v, %v", claims, err)
	}
}

// What a push service answers. A host that is no push service gets one call.
func TestWebPushAnswers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		code    int
		state   string
		targets int
		wait    time.Duration // until the next attempt
	}{
		{http.StatusCreated, "done", 1, 0},
		{http.StatusOK, "done", 0, 0}, // anybody's page
		{http.StatusFound, "done", 0, 0},
		{http.StatusBadRequest, "done", 0, 0},
		{http.StatusNotFound, "done", 0, 0},
		{http.StatusGone, "done", 0, 0},
		{http.StatusUnauthorized, "sending", 1, time.Hour},
		{http.StatusForbidden, "sending", 1, time.Hour},
		{http.StatusTooManyRequests, "sending", 1, time.Second},
		{http.StatusServiceUnavailable, "sending", 1, time.Second},
	} {
		t.Run(http.StatusText(tc.code), func(t *testing.T) {
			t.Parallel()
			b, w := subscribed(t)
			w.answers(status(tc.code))
			b.send("hello")
			b.run()
			j := b.only()
			if j.State != tc.state || b.count(`SELECT count(*) FROM push_targets`) != tc.targets {
				t.Fatalf("%+v", j)
			}
			if tc.wait > 0 && (j.Wait > tc.wait || j.Wait < tc.wait*9/10-time.Second) {
				t.Errorf("again in %v, want %v", j.Wait, tc.wait)
			}
			b.send("again")
			b.run()
			if calls := w.taken(); tc.targets == 0 && len(calls) != 1 {
				t.Errorf("%d calls", len(calls))
			}
		})
	}
}

// A push service that hangs, and one whose address is not public.
func TestWebPushCannotBeCalled(t *testing.T) {
	t.Parallel()
	b, w := subscribed(t)
	ended := make(chan struct{})
	w.answers(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(ended)
	})
	b.worker = b.newWorker(func(c *push.Config) {
		c.WebPush, c.Timeout = push.NewWebPush(w.vapid, contact, true), 50*time.Millisecond
	})
	b.send("hello")
	b.run()
	<-ended
	if j := b.only(); j.State != "sending" || !strings.Contains(j.Error, "deadline") {
		t.Errorf("a push service that hangs: %+v", j)
	}

	b, w = subscribed(t)
	b.worker = b.newWorker(func(c *push.Config) { c.WebPush = push.NewWebPush(w.vapid, contact, false) })
	b.send("hello")
	b.run()
	if j := b.only(); j.State != "dead" || !strings.Contains(j.Error, "not public") || len(w.taken()) != 0 {
		t.Errorf("an address that is not public: %+v", j)
	}
}

func TestWebPushTargets(t *testing.T) {
	t.Parallel()
	_, w := subscribed(t)
	allowed := push.Policy{WebPush: w.vapid.Public()}
	good := w.target()
	good.Address = "https://push.example.com/sub/1"
	change := func(change func(*push.Target)) push.Target {
		target := good
		change(&target)
		return target
	}
	for want, target := range map[string]push.Target{
		"":                     good,
		"p256dh must be":       change(func(t *push.Target) { t.P256dh = slices.Repeat([]byte{4}, 65) }),
		"got 15":               change(func(t *push.Target) { t.Auth = t.Auth[1:] }),
		"another scheme":       change(func(t *push.Target) { t.Address = "http://push.example.com/" }),
		"at a public address":  change(func(t *push.Target) { t.Address = "https://10.0.0.1/" }),
		"user information nor": change(func(t *push.Target) { t.Address = "https://a:b@push.example.com/" }),
	} {
		err := allowed.Check(target)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	if err := (push.Policy{Webhooks: true}).Check(good); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("without a key: %v", err)
	}
}

// A device is not called because of messages of a convo that it has muted. A Welcome calls it.
func TestMutedConvo(t *testing.T) {
	t.Parallel()
	b, w := subscribed(t)
	mute := func(convos ...uuid.UUID) {
		target := w.target()
		target.Muted = convos
		b.registerNew(target)
	}
	for _, tc := range []struct {
		muted []uuid.UUID
		calls int
	}{{[]uuid.UUID{b.convo}, 0}, {[]uuid.UUID{uuid.New()}, 1}, {nil, 1}} {
		mute(tc.muted...)
		b.send("hello")
		b.run()
		if calls := w.taken(); len(calls) != tc.calls {
			t.Errorf("%d muted: %d calls, want %d", len(tc.muted), len(calls), tc.calls)
		}
	}
	mute(b.convo)
	if err := b.deposit(6, func() error { return nil }, "browser"); err != nil {
		t.Fatal(err)
	}
	b.run()
	if calls := w.taken(); len(calls) != 1 {
		t.Errorf("a Welcome of a muted convo: %d calls, want 1", len(calls))
	}
	b.exec(`DELETE FROM welcomes`)
}
