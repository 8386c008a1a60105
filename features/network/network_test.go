package network

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
)

const (
	bobsHome syntax.DID = "did:web:home.example.com"
	alice    syntax.DID = "did:plc:alicealicealicealicealic"
	bob      syntax.DID = "did:plc:bobbobbobbobbobbobbobbob"
)

func TestTrust(t *testing.T) {
	t.Parallel()
	other := syntax.DID("did:web:other.example.com")
	for text, allows := range map[string][2]bool{ // the home, another
		"": {false, false}, "all": {true, true},
		bobsHome.String():                        {true, false},
		bobsHome.String() + " " + other.String(): {true, true},
		"home.example.com":                       {true, false},
		"example.com":                            {true, true},
		"xample.com":                             {false, false},
		"did:web:example.com":                    {false, false},
	} {
		trust, err := ParseTrust(text)
		if err != nil || trust.Allows(bobsHome) != allows[0] || trust.Allows(other) != allows[1] || trust.String() != text {
			t.Errorf("%q: %v, %v %v", text, err, trust.Allows(bobsHome), trust.Allows(other))
		}
	}
	for _, text := range []string{"none", "only " + bobsHome.String(), "all b.example.com", "did:web", "a..b"} {
		if _, err := ParseTrust(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// known are services that are one: the home of bob, whose keys are those of s.
type known struct{ s *Service }

func (k known) Service(_ context.Context, did syntax.DID, _ time.Duration) (serviceauth.Service, error) {
	if did != bobsHome {
		return serviceauth.Service{}, serviceauth.ErrNoService
	}
	var err error
	service := serviceauth.Service{DID: did, Keys: map[string]atcrypto.PublicKey{}}
	for _, key := range k.s.Keys() {
		service.Keys[key.ID], _ = atcrypto.ParsePublicMultibase(key.Multikey)
	}
	return service, err
}

func (k known) Home(context.Context, syntax.DID, time.Duration) (syntax.DID, error) {
	return bobsHome, nil
}

var claimedAt = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// services are the home of bob, whose keys are in the file, and a service that takes its receipts ten
// minutes after the claim.
func services(t testing.TB, path string) (issuer, taker *Service) {
	t.Helper()
	now := func() time.Time { return claimedAt.Add(10 * time.Minute) }
	keys := KeysAt(path)
	if _, err := keys.Sync(""); err != nil {
		t.Fatal(err)
	}
	issuer = New(Config{DID: bobsHome, Keys: keys, Now: now})
	return issuer, New(Config{DID: "did:web:here.example.com", Services: known{issuer}, Now: now,
		Trust: Trusting(bobsHome)})
}

func keyPath(t testing.TB) string { return filepath.Join(t.TempDir(), "keys", "service.key") }

func receiptOf(t testing.TB, s *Service) string {
	t.Helper()
	claimed := []keypackages.Claimed{{DID: bob, DeviceID: "phone", Ref: []byte("0123456789abcdef"), CipherSuite: 1}}
	all, err := s.Receipts(claimed, alice, claimedAt)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// A receipt is valid until the claim ends, and all of it is signed.
func TestReceipt(t *testing.T) {
	t.Parallel()
	issuer, taker := services(t, keyPath(t))
	receipt := receiptOf(t, issuer)
	got, err := taker.Verify(t.Context(), alice, []string{receipt})
	if err != nil || len(got) != 1 || got[0].DID != bob || got[0].DeviceID != "phone" || got[0].Service != bobsHome ||
		string(got[0].Ref) != "0123456789abcdef" || got[0].CipherSuite != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if own, err := issuer.Verify(t.Context(), alice, []string{receipt}); err != nil || len(own) != 0 {
		t.Errorf("a receipt of one's own: %v, %v; its ledger decides", own, err)
	}
	refused := func(receipt string) bool {
		_, err := taker.Verify(t.Context(), alice, []string{receipt})
		_, is := errors.AsType[*ReceiptError](err)
		return is
	}
	parts := strings.Split(receipt, ".")
	for i, part := range parts {
		raw, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil {
			t.Fatal(err)
		}
		for at := range raw {
			raw[at] ^= 1
			changed := []string{parts[0], parts[1], parts[2]}
			changed[i] = base64.RawURLEncoding.EncodeToString(raw)
			raw[at] ^= 1
			if !refused(strings.Join(changed, ".")) {
				t.Errorf("part %d, byte %d: a change is not noticed", i, at)
			}
		}
	}
	if !refused(receipt+"x") || !refused(receipt+".") || !refused(strings.Repeat("x", MaxReceipt+1)) {
		t.Error("a longer text is taken")
	}
	taker.cfg.Now = func() time.Time { return claimedAt.Add(keypackages.ClaimLifetime) }
	if !refused(receipt) {
		t.Error("it is taken after the claim's end")
	}
}

// N8: the key is in a file that only the service can read, and nowhere else. A node makes it if the
// service has none. If the database knows a key that the file lacks, the node makes none and signs
// nothing.
func TestServiceKey(t *testing.T) {
	t.Parallel()
	path := keyPath(t)
	issuer, taker := services(t, path)
	receipt := receiptOf(t, issuer)
	takes := func(receipt string) bool {
		_, err := taker.Verify(t.Context(), alice, []string{receipt})
		return err == nil
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || !takes(receipt) {
		t.Errorf("the file: %v, %v", info, err)
	}
	first := issuer.Keys()[0]
	if again, _ := services(t, path); again.Keys()[0] != first {
		t.Errorf("a second node has %v, not %v", again.Keys(), first)
	}
	for _, leaked := range []bool{false, true} {
		before := issuer.Keys()[0]
		keys, err := Rotate(path, leaked)
		if err != nil {
			t.Fatal(err)
		}
		newest, err := issuer.cfg.Keys.Sync(before.Multikey)
		if leaked != (err != nil) || !leaked && newest != keys[0].Multikey {
			t.Errorf("leaked %v: the record has the key before: %q, %v", leaked, newest, err)
		}
		_, err = issuer.cfg.Keys.Sync(keys[0].Multikey)
		if err != nil || takes(receipt) == leaked || !takes(receiptOf(t, issuer)) {
			t.Errorf("leaked %v: %v, the old receipt %v", leaked, err, takes(receipt))
		}
	}
	for name, change := range map[string]func(string) error{
		"lost":  os.Remove,
		"other": func(path string) error { _, err := Rotate(path, true); return err },
	} {
		recorded := issuer.Keys()[0].Multikey
		if err := change(path); err != nil {
			t.Fatal(err)
		}
		if _, err := issuer.cfg.Keys.Sync(recorded); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := issuer.Receipts(nil, alice, claimedAt); !errors.Is(err, ErrNoKey) || issuer.Keys() != nil {
			t.Errorf("%s: it signs: %v, %v", name, err, issuer.Keys())
		}
		if _, err := Rotate(path, true); err != nil {
			t.Fatal(err)
		}
		if _, err := issuer.cfg.Keys.Sync(""); err != nil {
			t.Errorf("%s: a new key: %v", name, err)
		}
	}
	for _, text := range []string{"", "z42", "zQ3sh", first.Multikey} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := issuer.cfg.Keys.Sync(""); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// FuzzReceipt: whatever an unauthenticated caller sends, it is a receipt of the home or it is
// refused.
func FuzzReceipt(f *testing.F) {
	issuer, taker := services(f, keyPath(f))
	valid := receiptOf(f, issuer)
	for _, text := range []string{valid, "", "..", strings.ToUpper(valid), valid + "=", "e30.e30.e30"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := taker.Verify(t.Context(), alice, []string{text})
		if _, refused := errors.AsType[*ReceiptError](err); err != nil && !refused {
			t.Fatalf("%q: %v", text, err)
		}
		if err == nil && (len(got) > 1 || len(got) == 1 && got[0].DID != bob) {
			t.Fatalf("%q: %+v", text, got)
		}
	})
}
