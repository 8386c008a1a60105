package xrpc

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// A token by another clock is signed, and differs from the usual token in its times only.
func TestTokenByAnotherClock(t *testing.T) {
	t.Parallel()
	for serial := range 2 {
		a, err := NewAccount(serial)
		if err != nil {
			t.Fatal(err)
		}
		usual, err := a.Token(DefaultServiceDID, "com.example.method")
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-time.Hour)
		token, err := a.tokenAt(at, DefaultServiceDID, "com.example.method")
		if err != nil {
			t.Fatal(err)
		}
		want, got := claimsOf(t, usual), claimsOf(t, token)
		if !slices.Equal(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))) {
			t.Errorf("claims are %v, want those of %v", got, want)
		}
		for _, name := range []string{"iss", "aud", "lxm"} {
			if got[name] != want[name] {
				t.Errorf("%s is %v, want %v", name, got[name], want[name])
			}
		}
		if got["iat"] != float64(at.Unix()) || got["exp"] != float64(at.Add(tokenLife).Unix()) {
			t.Errorf("the times are %v, want from %d for %s", got, at.Unix(), tokenLife)
		}
		parts := strings.Split(token, ".")
		if header, _, _ := strings.Cut(usual, "."); decode(t, parts[0])["alg"] != decode(t, header)["alg"] {
			t.Errorf("the header is %v", decode(t, parts[0]))
		}
		signature, err := base64.RawURLEncoding.DecodeString(parts[2])
		if err != nil {
			t.Fatal(err)
		}
		public, err := a.key.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		if err := public.HashAndVerify([]byte(parts[0]+"."+parts[1]), signature); err != nil {
			t.Error(err)
		}
	}
}

func claimsOf(t *testing.T, token string) map[string]any {
	t.Helper()
	return decode(t, strings.Split(token, ".")[1])
}

func decode(t *testing.T, part string) (object map[string]any) {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	return object
}
