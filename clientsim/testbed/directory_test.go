package testbed_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/auth"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/testbed/testbedtest"
	"mlsd/clientsim/xrpc"
	"mlsd/clientsim/xrpc/xrpctest"
)

func resolver(d *testbed.Directory) *identity.BaseDirectory {
	return &identity.BaseDirectory{
		PLCURL: d.URL, SkipHandleVerification: true,
		HTTPClient: http.Client{Timeout: time.Minute},
	}
}

// A directory knows for which of its accounts somebody has asked.
func TestDirectoryKnowsWhoWasAskedFor(t *testing.T) {
	t.Parallel()
	dir := testbedtest.Directory(t)
	one, other := registered(t, dir, 0), registered(t, dir, 1)
	if _, err := resolver(dir).LookupDID(t.Context(), one.DID); err != nil {
		t.Fatal(err)
	}
	if !dir.Asked(one.DID) || dir.Asked(other.DID) {
		t.Errorf("asked: %t and %t, want only the first", dir.Asked(one.DID), dir.Asked(other.DID))
	}
}

// A real resolver takes the directory for PLC. A real validator accepts the tokens, on either
// curve.
func TestTokensValidateThroughTheDirectory(t *testing.T) {
	t.Parallel()
	const audience = "did:web:localhost%3A8080"
	dir := testbedtest.Directory(t)
	validator := auth.ServiceAuthValidator{Audience: audience, Dir: resolver(dir)}
	method, other := syntax.NSID("blue.catbird.mls.sendMessage"), syntax.NSID("blue.catbird.mls.getConvo")
	for serial := range 2 {
		account := registered(t, dir, serial)
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
	unknown := xrpctest.Account(t, 0)
	if _, err := resolver(dir).LookupDID(t.Context(), unknown.DID); err == nil {
		t.Error("an unregistered DID resolved")
	}
	// A token must not pass if its key is not in the DID document.
	impostor := *unknown
	impostor.DID = registered(t, dir, 0).DID
	token, err := impostor.Token(audience, method)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := validator.Validate(t.Context(), token, &method); err == nil {
		t.Error("a foreign key signed for a DID")
	}
}

func registered(t *testing.T, d *testbed.Directory, serial int) *xrpc.Account {
	t.Helper()
	a := xrpctest.Account(t, serial)
	if err := d.Register(a); err != nil {
		t.Fatal(err)
	}
	return a
}

// The directory is the PDS of an account that has chosen a service, even after the account's key
// has changed. The account has the record that names the service. Other accounts have no record.
func TestDirectoryHasTheRecordOfWhoHasChosen(t *testing.T) {
	t.Parallel()
	dir := testbedtest.Directory(t)
	alice, bob := registered(t, dir, 0), registered(t, dir, 1)
	const home = "did:web:mls.example.org"
	dir.Choose(alice.DID, home)
	if err := dir.Register(alice); err != nil {
		t.Fatal(err)
	}
	record := func(who *xrpc.Account) (int, string) {
		ident, err := resolver(dir).LookupDID(t.Context(), who.DID)
		if err != nil {
			t.Fatal(err)
		}
		if chosen := ident.PDSEndpoint() == dir.URL; chosen != (who == alice) {
			t.Errorf("the PDS of %s is %s", who.DID, ident.PDSEndpoint())
		}
		resp, err := http.Get(dir.URL +
			"/xrpc/com.atproto.repo.getRecord?collection=blue.catbird.mls.profile&rkey=self&repo=" + who.DID.String())
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out struct {
			Value struct{ DeliveryService string }
		}
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, out.Value.DeliveryService
	}
	if status, got := record(alice); status != http.StatusOK || got != home {
		t.Errorf("the record of who has chosen: %d %q", status, got)
	}
	if status, got := record(bob); status != http.StatusBadRequest || got != "" {
		t.Errorf("the record of who has not: %d %q", status, got)
	}
}
