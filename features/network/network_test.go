package network

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/features/transparency"
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
	keys, err := k.s.Keys()
	service := serviceauth.Service{DID: did, Keys: map[string]atcrypto.PublicKey{}}
	for _, key := range keys {
		service.Keys[key.ID], _ = atcrypto.ParsePublicMultibase(key.Multikey)
	}
	return service, err
}

func (k known) Home(context.Context, syntax.DID, time.Duration) (syntax.DID, error) {
	return bobsHome, nil
}

var claimedAt = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// services are the home of bob, and a service that takes its receipts ten minutes after the claim.
func services(seeds ...transparency.Seed) (issuer, taker *Service) {
	now := func() time.Time { return claimedAt.Add(10 * time.Minute) }
	issuer = New(Config{DID: bobsHome, Seeds: func() []transparency.Seed { return seeds }, Now: now})
	return issuer, New(Config{DID: "did:web:here.example.com", Services: known{issuer}, Now: now,
		Trust: Trusting(bobsHome)})
}

func seed(id int32, made time.Time) transparency.Seed {
	return transparency.Seed{ID: id, CreatedAt: made, Seed: []byte(strings.Repeat(string(rune('a'+id)), 32))}
}

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
	issuer, taker := services(seed(1, claimedAt.Add(-24*time.Hour)))
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

// A new key signs once other services have had the time to learn it.
func TestNewKeySigns(t *testing.T) {
	t.Parallel()
	now := claimedAt.Add(10 * time.Minute)
	for name, c := range map[string]struct {
		made []time.Duration // ago
		want string
	}{
		"one":                {[]time.Duration{0}, "#mls_service_1"},
		"a new one":          {[]time.Duration{time.Hour * 9, time.Minute * 59}, "#mls_service_1"},
		"a known one":        {[]time.Duration{time.Hour * 9, time.Hour}, "#mls_service_2"},
		"two new ones":       {[]time.Duration{time.Minute * 2, time.Minute}, "#mls_service_1"},
		"three, two of them": {[]time.Duration{time.Hour * 9, time.Hour * 2, time.Minute}, "#mls_service_2"},
	} {
		var seeds []transparency.Seed
		for i, ago := range c.made {
			seeds = append(seeds, seed(int32(i+1), now.Add(-ago)))
		}
		issuer, taker := services(seeds...)
		keys, err := issuer.Keys()
		if err != nil || len(keys) != len(seeds) || keys[0].ID != c.want || !keys[0].Signs {
			t.Errorf("%s: %+v, %v", name, keys, err)
		}
		if _, err := taker.Verify(t.Context(), alice, []string{receiptOf(t, issuer)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzReceipt: whatever an unauthenticated caller sends, it is a receipt of the home or it is
// refused.
func FuzzReceipt(f *testing.F) {
	issuer, taker := services(seed(1, claimedAt.Add(-24*time.Hour)))
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
