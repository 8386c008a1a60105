package api_test

import (
	"net/http"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
)

// Bob moves: his record names another service, he publishes KeyPackages there, and withdraws those of
// his old home. What was claimed before and not used is refused by its name. An invitation that is under
// way arrives at the old home, and Bob's client finds it there. His convos stay where they are.
func TestMovingHome(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t, "did:web:mls.example.org")
	here, old, home := worlds[0], worlds[1], worlds[2]
	r.open(worlds...)
	s := here.sender(nil)
	before, _ := alice.invites(old, bob)
	here.deliver(s)
	bob.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: here.self, ConvoID: before}).ok()
	underWay, _ := alice.invites(old, bob)
	bob.publish()
	refs, receipts := alice.abroad(old, bob)
	bob.publish()

	r.lives(bob, home)
	bob.at(home).publish()
	bob.post(mlsapi.NSIDWithdrawKeyPackages, &mlsapi.WithdrawKeyPackagesInput{DeviceID: bob.deviceID()}).ok()
	out := read[mlsapi.GetKeyPackagesOutput](t,
		alice.at(old).get(mlsapi.NSIDGetKeyPackages, "receipts", "true", "dids", bob.did().String()).ok())
	if len(out.KeyPackages) != 0 {
		t.Errorf("the old home hands out %+v", out.KeyPackages)
	}
	c := alice.create()
	message := alice.post(mlsapi.NSIDAddMembers, alice.adding(c, bob, refs, receipts)).
		fails(http.StatusBadRequest, mlsapi.ErrInvalidReceipt)
	if !strings.Contains(message, "has not chosen") {
		t.Errorf("a receipt of the old home is refused with %q", message)
	}
	alice.adds(c, home, bob)
	for range 2 { // the first call of a service has one place
		here.deliver(s)
	}

	if got := bob.invitations().Invitations; len(got) != 2 || got[0].ConvoID != underWay || got[0].State != "open" {
		t.Errorf("at the old home: %+v", got)
	}
	if got := bob.at(home).invitations().Invitations; len(got) != 1 || got[0].ConvoID != c.id {
		t.Errorf("at the new home: %+v", got)
	}
	bob.post(mlsapi.NSIDAcceptInvitation, &mlsapi.AcceptInvitationInput{Service: here.self, ConvoID: underWay}).ok()
	for _, id := range []string{before, underWay, c.id} {
		bob.at(here).post(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: id}).ok()
		bob.at(here).get(mlsapi.NSIDGetWelcome, "convoId", id, "deviceId", bob.deviceID()).ok()
		bob.at(here).post(mlsapi.NSIDConfirmWelcome,
			&mlsapi.ConfirmWelcomeInput{ConvoID: id, DeviceID: ptr(bob.deviceID()), Success: true}).ok()
	}

	bob.at(here).confirmation() // he can erase himself where his convos are
	// The old home does not speak for him any more: to erase the account there ends none of his convos.
	if refused, err := old.network.TellErasure(t.Context(), here.self, bob.did()); !refused || err == nil {
		t.Errorf("the old home's erasure: refused %v, %v", refused, err)
	}
	if refused, err := home.network.TellErasure(t.Context(), here.self, bob.did()); refused || err != nil {
		t.Errorf("the new home's erasure: refused %v, %v", refused, err)
	}
}
