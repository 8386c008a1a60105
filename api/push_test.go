package api_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"mlsd/api/mlsapi"
)

// The targets that a device can register, and the answers.
func TestRegisterPushTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	register := func(u *user, in mlsapi.RegisterPushTargetInput) answer {
		return u.post(mlsapi.NSIDRegisterPushTarget, &in)
	}
	hook := func(device, url string) mlsapi.RegisterPushTargetInput {
		return mlsapi.RegisterPushTargetInput{DeviceID: device, Kind: "webhook", URL: &url}
	}
	secret := func(a answer) string {
		out := read[mlsapi.RegisterPushTargetOutput](t, a.ok())
		if out.Secret == nil || len(*out.Secret) != 43 {
			t.Fatalf("secret: %s", a.body)
		}
		return *out.Secret
	}
	first := secret(register(alice, hook("phone", "https://push.example.com/1")))
	if secret(register(alice, hook("phone", "https://push.example.com/1"))) != first {
		t.Error("the same again has another secret")
	}
	for _, other := range []answer{
		register(alice, hook("tablet", "https://push.example.com/1")),
		register(bob, hook("phone", "https://push.example.com/1")),
		register(alice, hook("phone", "https://push.example.com/2")),
	} {
		if secret(other) == first {
			t.Error("two targets share a secret")
		}
	}
	if message := register(alice,
		mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "apns", Token: text("c0ffee"), Topic: text("app")}).
		fails(http.StatusBadRequest, mlsapi.ErrInvalidPushTarget); !strings.Contains(message, "no key for APNs") {
		t.Errorf("without a key: %s", message)
	}
	both := hook("phone", "https://push.example.com/")
	both.Token = text("c0ffee")
	for _, in := range []mlsapi.RegisterPushTargetInput{
		both, hook("phone", "http://push.example.com/"), hook("phone", "https://10.0.0.1/"),
		{DeviceID: "phone", Kind: "webhook"},
		{DeviceID: "phone", Kind: "pigeon"}, hook("phone", "https://push.example.com/"+strings.Repeat("x", 3000)),
	} {
		register(alice, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidPushTarget)
	}
	register(alice, hook("", "https://push.example.com/")).fails(http.StatusBadRequest, "InvalidRequest")
	register(alice, hook(strings.Repeat("x", 257), "https://push.example.com/")).fails(http.StatusBadRequest,
		"InvalidRequest")

	unregister := func(u *user) bool {
		return read[mlsapi.UnregisterPushTargetOutput](t,
			u.post(mlsapi.NSIDUnregisterPushTarget, &mlsapi.UnregisterPushTargetInput{DeviceID: "tablet"}).ok()).Removed
	}
	if unregister(bob) || !unregister(alice) || unregister(alice) {
		t.Error("the wrong device was unregistered")
	}
	if n := w.count(`SELECT count(*) FROM push_targets`); n != 2 {
		t.Errorf("%d targets", n)
	}
}

// A browser asks for the service's key and subscribes with it. Without a key, both say so.
func TestWebPush(t *testing.T) {
	t.Parallel()
	private, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point := private.PublicKey().Bytes()
	browser := func() *mlsapi.RegisterPushTargetInput {
		return &mlsapi.RegisterPushTargetInput{DeviceID: "browser", Kind: "webpush", URL: text("https://push.example.com/1"),
			P256dh: point, Auth: []byte("0123456789abcdef"), Muted: []string{uuid.NewString()}}
	}
	bob := newWorld(t).user()
	bob.get(mlsapi.NSIDGetPushKey).fails(http.StatusBadRequest, mlsapi.ErrPushDisabled)
	bob.post(mlsapi.NSIDRegisterPushTarget, browser()).fails(http.StatusBadRequest, mlsapi.ErrInvalidPushTarget)

	alice := newWorld(t, func(w *world) { w.vapid = point }).user()
	if got := read[mlsapi.GetPushKeyOutput](t, alice.get(mlsapi.NSIDGetPushKey).ok()).PublicKey; !bytes.Equal(got, point) {
		t.Errorf("the key %x, want %x", got, point)
	}
	out := read[mlsapi.RegisterPushTargetOutput](t, alice.post(mlsapi.NSIDRegisterPushTarget, browser()).ok())
	if out.State == nil || *out.State != "active" || out.Secret != nil {
		t.Errorf("%+v", out)
	}
	for want, change := range map[string]func(*mlsapi.RegisterPushTargetInput){
		"a url, p256dh and auth": func(in *mlsapi.RegisterPushTargetInput) { in.URL = nil },
		"auth must have":         func(in *mlsapi.RegisterPushTargetInput) { in.Auth = nil },
		"p256dh must be":         func(in *mlsapi.RegisterPushTargetInput) { in.P256dh = nil },
		"muted[0]":               func(in *mlsapi.RegisterPushTargetInput) { in.Muted = []string{"the family"} },
		"has a url, webpush":     func(in *mlsapi.RegisterPushTargetInput) { in.Kind = "webhook" },
	} {
		in := browser()
		change(in)
		message := alice.post(mlsapi.NSIDRegisterPushTarget, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidPushTarget)
		if !strings.Contains(message, want) {
			t.Errorf("%s, want %q", message, want)
		}
	}
}

// A key that was used for another device is a conflict. A late repetition does not change a newer
// registration.
func TestRegisterPushTargetKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, key := w.user(), newKey()
	old := &mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: text("https://push.example.com/old"),
		IdempotencyKey: key}
	first := alice.post(mlsapi.NSIDRegisterPushTarget, old)
	first.ok()
	moved := &mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: text("https://push.example.com/new"),
		IdempotencyKey: key}
	if message := alice.post(mlsapi.NSIDRegisterPushTarget, moved).fails(http.StatusConflict,
		mlsapi.ErrIdempotencyConflict); !strings.Contains(message, "url") {
		t.Errorf("conflict: %s", message)
	}
	moved.IdempotencyKey = newKey()
	alice.post(mlsapi.NSIDRegisterPushTarget, moved).ok()
	alice.post(mlsapi.NSIDRegisterPushTarget, old).replays(first)
	if n := w.count(`SELECT count(*) FROM push_targets WHERE address LIKE '%/new'`); n != 1 {
		t.Error("the repetition has brought the old URL back")
	}
}
