package clientsim

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/auth"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

func testDirectory(t *testing.T) *Directory {
	t.Helper()
	d, err := NewDirectory("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func testAccount(t *testing.T, d *Directory, serial int) *Account {
	t.Helper()
	a, err := NewAccount(serial)
	if err != nil {
		t.Fatal(err)
	}
	if d != nil {
		if err := d.Register(a); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func resolver(d *Directory) *identity.BaseDirectory {
	return &identity.BaseDirectory{
		PLCURL: d.URL(), SkipHandleVerification: true,
		HTTPClient: http.Client{Timeout: 5 * time.Second},
	}
}

// The directory is what a real resolver takes for PLC, and the tokens are what
// a real validator takes for a PDS's, on either curve.
func TestTokensValidateThroughTheDirectory(t *testing.T) {
	t.Parallel()
	const audience = "did:web:localhost%3A8080"
	dir := testDirectory(t)
	validator := auth.ServiceAuthValidator{Audience: audience, Dir: resolver(dir)}
	method, other := syntax.NSID("blue.catbird.mls.sendMessage"), syntax.NSID("blue.catbird.mls.getConvo")
	for serial := range 2 {
		account := testAccount(t, dir, serial)
		ident, err := resolver(dir).LookupDID(t.Context(), account.DID)
		if err != nil {
			t.Fatal(err)
		}
		if ident.DID != account.DID || ident.PDSEndpoint() == "" {
			t.Errorf("resolved %+v", ident)
		}
		token, err := account.Token(audience, method)
		if err != nil {
			t.Fatal(err)
		}
		got, err := validator.Validate(t.Context(), token, &method)
		if err != nil || got != account.DID {
			t.Errorf("Validate = %s, %v; want %s", got, err, account.DID)
		}
		if _, err := validator.Validate(t.Context(), token, &other); err == nil {
			t.Error("a token for one method passed for another")
		}
		again, err := account.Token(audience, method)
		if err != nil {
			t.Fatal(err)
		}
		if again == token {
			t.Error("two tokens are equal")
		}
	}
	stranger := testAccount(t, nil, 0)
	if _, err := resolver(dir).LookupDID(t.Context(), stranger.DID); err == nil {
		t.Error("an unregistered DID resolved")
	}
	// A key that is not the DID document's must not pass.
	impostor := &Account{DID: testAccount(t, dir, 0).DID, key: stranger.key}
	token, err := impostor.Token(audience, method)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := validator.Validate(t.Context(), token, &method); err == nil {
		t.Error("a foreign key signed for a DID")
	}
}
