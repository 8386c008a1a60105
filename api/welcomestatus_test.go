package api_test

import (
	"bytes"
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

// What an inviter, another member, an outsider, and an inviter whom somebody blocks see of a
// Welcome on its way.
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

// The inviter gets an event once a device has joined, or could not. That is the member whose commit
// has sent the Welcome, or the creator; nobody else gets it. What a person does after a block of
// the inviter does not show, and neither does a failure in a request. To join accepts a request,
// and shows.
func TestArrival(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live, release)
	alice, bob, carol, dave, erin := w.user(), w.user(), w.user(), w.user(), w.user()
	frank, gina := w.user(), w.user()
	c := alice.create(bob, carol, dave, erin, gina)
	stream, frames := alice.stream(query("cursor", "0")), alice.dial("cursor", "0")
	others := bob.stream(query("cursor", "0"))
	next := func(r *reader) sent { // of arrivals and messages
		for {
			if e := r.event(); e.event == "arrivalEvent" || e.event == "messageEvent" {
				return e
			}
		}
	}
	nextFrame := func() []byte {
		for {
			if f := frames.read(); bytes.Contains(f, []byte("#arrivalEvent")) || bytes.Contains(f, []byte("#messageEvent")) {
				return f
			}
		}
	}
	bob.accept(c)
	carol.accept(c)
	erin.accept(c)
	erin.blocks(alice)
	gina.fetched(c)
	gina.confirm(c, false, nil).ok() // in a request
	for _, u := range []*user{bob, carol, dave, erin} {
		u.fetched(c)
		u.confirm(c, u != carol, nil).ok() // dave's is a request
	}
	bob.confirm(c, true, nil).ok() // again
	for _, want := range []struct {
		who   *user
		state string
	}{{bob, "consumed"}, {carol, "failed"}, {dave, "consumed"}} {
		e, frame := next(stream), nextFrame()
		got := read[mlsapi.StreamConvoEventsArrivalEvent](t, []byte(e.data))
		if e.event != "arrivalEvent" || got.ConvoID != c.id || got.DID != want.who.did() || got.State != want.state ||
			got.Epoch != c.epoch || !bytes.Contains(frame, []byte("#arrivalEvent")) {
			t.Errorf("%s %s, want %s of %s", e.event, e.data, want.state, want.who.did())
		}
	}
	alice.send(c, "welcome") // nothing has come between, for erin
	late := carol.stream(query("cursor", "0"))
	for name, s := range map[string]*reader{"the inviter": stream, "another member": others, "a late one": late} {
		if e := next(s); e.event != "messageEvent" {
			t.Errorf("%s gets %s %s", name, e.event, e.data)
		}
	}
	bob.add(c, frank)
	frank.fetched(c)
	frank.confirm(c, true, nil).ok()
	bob.send(c, "bob's friend")
	if e := next(others); e.event != "arrivalEvent" || !strings.Contains(e.data, string(frank.did())) {
		t.Errorf("who has added gets %s %s", e.event, e.data)
	}
	for name, s := range map[string]*reader{"the creator": stream, "another member": late} {
		if e := next(s); e.event != "messageEvent" {
			t.Errorf("%s gets %s %s", name, e.event, e.data)
		}
	}
}
