package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// sees returns the states of the Welcomes that the user is told of, by pages of two, as "person
// state", sorted. names are the people by DID.
func (u *user) sees(c *convo, names map[string]*user) string {
	u.w.t.Helper()
	var states []string
	for cursor := ""; ; {
		params := []string{"convoId", c.id, "limit", "2"}
		if cursor != "" {
			params = append(params, "cursor", cursor)
		}
		out := read[mlsapi.GetWelcomeStatusOutput](u.w.t, u.get(mlsapi.NSIDGetWelcomeStatus, params...).ok())
		for _, s := range out.Welcomes {
			for name, person := range names {
				if person.did() == s.DID {
					states = append(states, name+" "+s.State)
				}
			}
		}
		if out.Cursor == nil {
			slices.Sort(states)
			return strings.Join(states, ", ")
		}
		cursor = *out.Cursor
	}
}

// What an inviter, another member, a stranger, and an inviter whom somebody blocks see of a Welcome on
// its way.
func TestGetWelcomeStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, release)
	alice, bob, carol, dave, mallory := w.user(), w.user(), w.user(), w.user(), w.user()
	people := map[string]*user{"bob": bob, "carol": carol, "dave": dave}
	c := alice.create(bob, carol, dave)
	for _, u := range people {
		u.accept(c)
	}
	see := func(want string) {
		t.Helper()
		if got := alice.sees(c, people); got != want {
			t.Errorf("alice sees %q, want %q", got, want)
		}
	}
	see("bob available, carol available, dave available")
	bob.fetched(c)
	carol.fetched(c)
	see("bob in_flight, carol in_flight, dave available")
	if got := bob.sees(c, people); got != "" {
		t.Errorf("another member sees %q", got)
	}
	mallory.get(mlsapi.NSIDGetWelcomeStatus, "convoId", c.id).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	alice.get(mlsapi.NSIDGetWelcomeStatus, "convoId", c.id, "cursor", "x").fails(http.StatusBadRequest,
		mlsapi.ErrInvalidCursor)

	bob.confirm(c, true, nil).ok()
	carol.confirm(c, false, nil).ok()
	see("bob consumed, carol failed, dave available")
	carol.fetched(c) // the same lease
	see("bob consumed, carol failed, dave available")
	w.age(6 * time.Minute) // the grace is over
	carol.fetched(c)
	see("bob consumed, carol in_flight, dave available")

	// What they do after a block does not show. What they did before stays.
	bob.blocks(alice)
	carol.blocks(alice)
	see("bob consumed, carol in_flight, dave available")
	carol.confirm(c, true, nil).ok()
	see("bob consumed, carol in_flight, dave available")
	pgtest.Age(t, w.db, "welcomes", 6*time.Minute, "grace_expires_at")
	see("bob consumed, carol available, dave available")

	w.age(91 * 24 * time.Hour)
	if got := alice.sees(c, people); !strings.HasSuffix(got, "dave expired") {
		t.Errorf("after 91 days alice sees %q", got)
	}
}

// The Welcome of a request looks available until the person has accepted the convo.
func TestWelcomeStatusOfARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, release)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	people := map[string]*user{"bob": bob}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "bob available"},
		{func() { bob.fetched(c) }, "bob available"},
		{func() { bob.confirm(c, false, nil).ok() }, "bob available"},
		{func() { bob.accept(c) }, "bob failed"},
		{func() { bob.confirm(c, true, nil).ok() }, "bob consumed"},
	} {
		step.do()
		if got := alice.sees(c, people); got != step.want {
			t.Errorf("%s: alice sees %q, want %q", fmt.Sprint(i), got, step.want)
		}
	}
}
