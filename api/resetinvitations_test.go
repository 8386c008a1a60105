package api_test

import (
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/outbox"
	"mlsd/people/quota"
)

// Who resets sends the Welcomes of the successor, and is told what has become of them: not the creator,
// who has sent none.
func TestWelcomeStatusAfterAReset(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.phone(), w.phone(), w.phone()
	people := map[string]*user{"alice": alice.user, "bob": bob.user, "carol": carol.user}
	c := alice.found(bob, carol)
	next, view := bob.resets(c, alice, carol)
	if view.Creator != alice.did() {
		t.Fatalf("the creator is %s", view.Creator)
	}
	carol.joinWith(next)
	if got := bob.sees(next, people); got != "alice available, carol consumed" {
		t.Errorf("who has reset sees %q", got)
	}
	if got := alice.sees(next, people); got != "" {
		t.Errorf("the creator sees %q", got)
	}
	for name, n := range map[string]int{"alice": 0, "bob": 1} {
		got := w.count(`SELECT count(*) FROM outbox WHERE kind = $1 AND convo_id = $2 AND did = $3`, outbox.Arrival, next.id,
			people[name].did())
		if got != n {
			t.Errorf("%s gets %d events of it, want %d", name, got, n)
		}
	}
}

// A request that goes on in the successor of a convo stays one request, however often the convo is
// reset: it does not fill the person's open invitations.
func TestResetsDoNotFillInvitations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.limits = quota.Limits{quota.OpenInvitations: 2, quota.OneInviter: 4} })
	alice, bob, carol, dave := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	carol.accept(c)
	for range 3 {
		view := read[mlsapi.ResetConvoOutput](t, carol.post(mlsapi.NSIDResetConvo, &mlsapi.ResetConvoInput{ConvoID: c.id,
			Reason: "other", IdempotencyKey: newKey(), GroupInfo: carol.groupInfo(newGroup(t), 0)}).ok()).Convo
		c = &convo{id: view.ID}
		w.exec(`UPDATE convos SET created_at = created_at - $1::interval`, time.Hour)
	}
	alice.create(bob) // the second of two
	if !bob.request(c) {
		t.Error("the successor is no request")
	}
	bob.accept(c)
	dave.create(bob)
}
