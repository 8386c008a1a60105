package api_test

import (
	"fmt"
	"net/http"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/internal/moduletest"
)

// Three services have chosen each other, and a fourth is chosen by none. What it tries at one of the
// three gets the answers that docs/NETWORK.md shows, changes nothing, and makes nobody look it up.
// Its people are accounts like any other.
func TestServiceThatNobodyChose(t *testing.T) {
	t.Parallel()
	r, worlds, alice, bob := neighbours(t, "did:web:mls.example.edu", peer)
	here, there, fourth := worlds[0], worlds[1], worlds[3]
	fronts := r.open(worlds...)
	mallory := fourth.user()
	r.lives(mallory, fourth)
	last := alice.publish(mlstest.LastResort)
	bob.at(there).publish()
	in := mallory.delivery(alice, last)
	withdrawn, ended := *in, *in
	withdrawn.Kind, ended.Kind = "withdrawn", "ended"
	evil := here.peer() // it speaks with the key of the fourth service
	mallory.at(fourth).publish()
	refs, receipts := alice.abroad(fourth, mallory)
	c := alice.create()
	alice.invites(fourth, mallory) // before the operator of the first service changes its mind
	for _, w := range worlds[:3] {
		w.trusts(fmt.Sprintf("%s %s %s", worlds[0].self, worlds[1].self, worlds[2].self))
	}
	asked := 0
	r.asked = func() { asked++ }
	digest := here.digest()

	rows := "| it tries | it gets |\n|---|---|\n"
	row := func(what string, a answer, want string) {
		t.Helper()
		got := http.StatusText(a.status)
		if a.status != http.StatusOK {
			got = fmt.Sprintf("%d `%s`", a.status, read[struct{ Error string }](t, a.body).Error)
		}
		if got != want {
			t.Errorf("%s: %s, want %s: %s", what, got, want, a.body)
		}
		rows += "| " + what + " | " + got + " |\n"
	}
	const refused = "403 `NotPermitted`"
	row("deliver an invitation", evil.post(mlsapi.NSIDDeliverInvitation, in), refused)
	row("withdraw an invitation", evil.post(mlsapi.NSIDDeliverInvitation, &withdrawn), refused)
	row("end a convo for a person", evil.post(mlsapi.NSIDDeliverInvitation, &ended), refused)
	row("erase a person who lives here", evil.post(mlsapi.NSIDDeliverErasure,
		&mlsapi.DeliverErasureInput{DID: alice.did()}), refused)
	row("erase a person of its own", evil.post(mlsapi.NSIDDeliverErasure,
		&mlsapi.DeliverErasureInput{DID: mallory.did()}), refused)
	row("have a member here add its person, with its receipt",
		alice.post(mlsapi.NSIDAddMembers, alice.adding(c, mallory, refs, receipts)), "400 `InvalidReceipt`")
	row("be found as the home of its person",
		alice.get(mlsapi.NSIDGetDeliveryService, "did", mallory.did().String()), refused)
	row("repeat at another service a token that was made for this one", there.answer(there.server,
		there.request(http.MethodPost, mlsapi.NSIDDeliverErasure, nil, encode(&mlsapi.DeliverErasureInput{DID: bob.did()}),
			evil.authorization(mlsapi.NSIDDeliverErasure))), "401 `InvalidToken`")
	// What its people send is that of accounts, which MLSD_ADMIT and quotas bound.
	lookups := asked
	if here.digest() != digest {
		t.Error("something has changed")
	}
	row("have its person claim a KeyPackage, as anybody may",
		mallory.at(here).get(mlsapi.NSIDGetKeyPackages, "dids", alice.did().String(), "receipts", "true"), "OK")
	row("deliver the invitation to this KeyPackage", evil.post(mlsapi.NSIDDeliverInvitation, in), refused)
	before := fronts[3].calls.Load()
	for _, w := range worlds[:3] {
		w.deliver(w.sender(nil))
	}
	calls := fronts[3].calls.Load() - before
	rows += fmt.Sprintf("| be told of an invitation, a removal or an erasure | %d calls |\n", calls)
	if calls != 0 || lookups > 1 { // the home of a person is the person's record, which is asked for
		t.Errorf("%d calls of the fourth service, %d look-ups of people", calls, lookups)
	}
	if got := alice.invitations().Invitations; len(got) != 0 {
		t.Errorf("alice sees %+v", got)
	}
	moduletest.Table(t, "docs/NETWORK.md", "A service that nobody chose", rows)
}
