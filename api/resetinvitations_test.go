package api_test

import (
	"testing"

	"mlsd/events/outbox"
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
