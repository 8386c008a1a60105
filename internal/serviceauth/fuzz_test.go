package serviceauth_test

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

// FuzzValidate sends any Authorization. Nothing panics, and only a token that alice signed passes,
// as alice.
func FuzzValidate(f *testing.F) {
	alice := authtest.NewIdentity(f)
	fix := newFixture(f, alice)
	good := alice.Token(f, string(service), string(read), fix.now)
	f.Add("Bearer " + good)
	f.Add("Bearer " + alice.Token(f, string(service), string(read), fix.now,
		authtest.Claim("iss", "did:web:a.example.com")))
	f.Add("Bearer " + alice.Token(f, string(service), string(read), fix.now, authtest.Header("alg", "ES256")))
	f.Add("Bearer eyJhbGciOiJub25lIn0.e30.")
	f.Add("Basic x")
	f.Add("")
	f.Fuzz(func(t *testing.T, authorization string) {
		token, err := fix.Validate(context.Background(), "", authorization, read, false, nil)
		if err == nil {
			if token.Caller != alice.DID || !strings.Contains(authorization, good) {
				t.Fatalf("accepted %q as %s", authorization, token.Caller)
			}
			return
		}
		var invalid *serviceauth.InvalidError
		if token.Caller != "" || !errors.As(err, &invalid) && !errors.Is(err, serviceauth.ErrMissing) {
			t.Fatalf("Validate = %q, %v", token.Caller, err)
		}
	})
}

// FuzzClaims signs any header and claims with alice's key. A token that passes has alice as its
// caller, because no other DID's token verifies with her key.
func FuzzClaims(f *testing.F) {
	alice, bob := authtest.NewIdentity(f), authtest.NewIdentity(f)
	fix := newFixture(f, alice, bob)
	for _, changes := range [][]authtest.Change{
		nil,
		{authtest.Claim("iss", bob.DID), authtest.Claim("sub", alice.DID)},
		{authtest.Header("typ", "at+jwt")},
		{authtest.Header("kid", "#atproto"), authtest.Claim("aud", []string{string(service)})},
	} {
		parts := strings.Split(alice.Token(f, string(service), string(read), fix.now, changes...), ".")
		header, _ := base64.RawURLEncoding.DecodeString(parts[0])
		claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
		f.Add(string(header), string(claims))
	}
	f.Fuzz(func(t *testing.T, header, claims string) {
		authorization := "Bearer " + authtest.Sign(t, alice.Key, header, claims)
		token, err := fix.Validate(context.Background(), "", authorization, read, false, nil)
		if err == nil && token.Caller != alice.DID || err != nil && token.Caller != "" {
			t.Fatalf("Validate = %q, %v", token.Caller, err)
		}
	})
}
