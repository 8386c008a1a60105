package api_test

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/events"
	"mlsd/people/accounts"
	"mlsd/people/quota"
)

// gated runs the world's server behind a gate.
func gated(mode accounts.Mode) func(*world) { return func(w *world) { w.mode = mode } }

// gate returns the gate of a server, or nil.
func (w *world) newGate() api.Gate {
	w.t.Helper()
	if w.mode == "" {
		return nil
	}
	c := accounts.GateConfig{DB: w.db, Mode: w.mode, OnRefused: w.hub.End, Log: slog.New(slog.DiscardHandler), Now: w.now}
	gate, err := accounts.NewGate(c)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := gate.Load(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.gate = gate
	return gate
}

// block blocks a person, and the server reads it.
func (w *world) block(u *user) {
	w.t.Helper()
	if err := accounts.NewStore(0, convos.HandOver).Block(w.t.Context(), w.db, u.did(), "olga", "spam"); err != nil {
		w.t.Fatal(err)
	}
	w.readAccounts()
}

// states stores what the network says of a person, and the server reads it.
func (w *world) states(u *user, status accounts.Status, seq int64) {
	w.t.Helper()
	_, err := accounts.NewStore(0, convos.HandOver).SetStatus(w.t.Context(), w.db, "relay",
		[]accounts.Change{{DID: u.did(), Status: status, Seq: seq}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.readAccounts()
}

func (w *world) readAccounts() {
	w.t.Helper()
	if err := w.gate.RunOnce(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// Every method answers a blocked or inactive caller with the error's name, whatever it is asked,
// and does nothing. Others go on.
func TestRefusedAccounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, gated(accounts.ModeOpen))
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	w.block(bob)
	for _, method := range mlsapi.Methods() {
		if method.Kind == mlsapi.Subscription {
			continue // below
		}
		verb := http.MethodPost
		if method.Kind == mlsapi.Query {
			verb = http.MethodGet
		}
		before, tokens := w.digest(), w.count(`SELECT count(*) FROM used_tokens`)
		if message := w.do(verb, method.NSID, nil, []byte("{}"), bob.authorization(method.NSID)).fails(http.StatusForbidden,
			"Blocked"); message != accounts.ErrBlocked.Error() {
			t.Errorf("%s: %q", method.NSID, message)
		}
		if w.digest() != before || w.count(`SELECT count(*) FROM used_tokens`) != tokens {
			t.Errorf("%s has changed the database", method.NSID)
		}
	}
	alice.send(c, "you cannot hear this") // the convo works for others
	alice.page(c)
	w.states(alice, accounts.Deactivated, 1)
	message := alice.get(mlsapi.NSIDGetConvos).fails(http.StatusForbidden, "AccountInactive")
	if !strings.Contains(message, "deactivated") || !strings.Contains(message, "reactivate") {
		t.Errorf("the message is %q", message)
	}
	w.states(alice, accounts.Active, 2)
	alice.get(mlsapi.NSIDGetConvos).ok()
}

// An operator's limit scales a person's rate of requests and daily quotas, down or up, until it
// ends. The person gets the usual errors.
func TestLimitedAccount(t *testing.T) {
	t.Parallel()
	clock := newClock(time.Now())
	w := newWorld(t, gated(accounts.ModeOpen), func(w *world) {
		w.now = clock.now
		w.rates.DID = api.Rate{PerSecond: 1e-3, Burst: 40}
		w.limits = quota.Limits{"messages-per-day": 20, quota.AddressShare: 100}
	})
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	limit := func(u *user, percent int) {
		t.Helper()
		if _, err := accounts.NewStore(0, convos.HandOver).Limit(t.Context(), w.db, u.did(), percent, time.Hour, "olga",
			"floods"); err != nil {
			t.Fatal(err)
		}
		w.readAccounts()
	}
	size := func(u *user) string {
		t.Helper()
		a := u.get(mlsapi.NSIDGetConvos)
		a.ok()
		return a.header.Get("RateLimit-Limit")
	}
	says := func(u *user) answer { return u.post(mlsapi.NSIDSendMessage, u.message(c, "hello")) }
	limit(alice, 10)
	limit(bob, 300)
	if a, b := size(alice), size(bob); a != "4" || b != "120" {
		t.Errorf("the buckets have %s and %s units, want 4 and 120", a, b)
	}
	says(alice).ok()
	says(alice).ok()
	if message := says(alice).fails(http.StatusTooManyRequests, "QuotaExceeded"); !strings.HasPrefix(message,
		"quota messages-per-day is used up: 2 of 2; resets at ") {
		t.Error(message)
	}
	refused := says(alice)
	refused.fails(http.StatusTooManyRequests, "RateLimitExceeded")
	// A tenth of the rate fills the bucket of four in as much time as the whole rate one of forty.
	if after, err := strconv.Atoi(refused.header.Get("Retry-After")); err != nil || after < 9_000 || after > 10_000 {
		t.Errorf("Retry-After is %q, want 10,000", refused.header.Get("Retry-After"))
	}
	for range 21 { // more than without a limit
		says(bob).ok()
	}
	clock.advance(2 * time.Hour)
	if a, b := size(alice), size(bob); a != "40" || b != "40" {
		t.Errorf("after the end the buckets have %s and %s units, want 40", a, b)
	}
	says(alice).ok()
}

// A refused caller's token is not used up: it works once the account is admitted again.
func TestRefusedTokenIsNotUsedUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, gated(accounts.ModeOpen))
	alice := w.user()
	token := alice.authorization(mlsapi.NSIDGetSubscriptionTicket)
	call := func() answer {
		return w.do(http.MethodPost, mlsapi.NSIDGetSubscriptionTicket, nil, nil, token)
	}
	w.block(alice)
	call().fails(http.StatusForbidden, "Blocked")
	if _, err := accounts.NewStore(0, convos.HandOver).Unblock(t.Context(), w.db, alice.did()); err != nil {
		t.Fatal(err)
	}
	w.readAccounts()
	call().ok()
	call().fails(http.StatusUnauthorized, "InvalidToken")
}

// The KeyPackages of a refused account are missing, byte for byte as if it had none.
func TestKeyPackagesOfRefusedAccounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, gated(accounts.ModeOpen))
	alice, bob, carol, nobody := w.user(), w.user(), w.user(), w.user()
	bob.publish()
	carol.publish()
	w.block(bob)
	answerFor := func(who *user) string {
		return strings.ReplaceAll(string(alice.get(mlsapi.NSIDGetKeyPackages, "dids", who.did().String()).ok()),
			who.did().String(), "DID")
	}
	if got, want := answerFor(bob), answerFor(nobody); got != want {
		t.Errorf("a blocked account: %s; one without KeyPackages: %s", got, want)
	}
	out := read[mlsapi.GetKeyPackagesOutput](t,
		alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String(), "dids", carol.did().String()).ok())
	if len(out.KeyPackages) != 1 || out.KeyPackages[0].DID != carol.did() || len(out.Missing) != 1 ||
		out.Missing[0] != bob.did() {
		t.Errorf("%+v", out)
	}
	if got := w.count(`SELECT count(*) FROM key_packages WHERE did = $1 AND state = 'available'`, bob.did()); got != 1 {
		t.Errorf("%d KeyPackages of the blocked account are left", got)
	}
}

// The streams of an account end with the reason when the account is refused, and none begins.
func TestStreamsOfRefusedAccounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live, gated(accounts.ModeOpen))
	alice, bob := w.user(), w.user()
	socket, other, stream := alice.dial(), bob.dial(), alice.stream(nil)
	byTicket := w.dial("", "ticket", alice.ticket())
	unused := alice.ticket()
	w.block(alice)
	message := accounts.ErrBlocked.Error()
	socket.fails("Blocked", message)
	byTicket.fails("Blocked", message)
	if e := stream.event(); !strings.Contains(e.data, "Blocked: "+message) {
		t.Errorf("the stream ends with %+v", e)
	}
	stream.ends()
	w.handshake(mlsapi.NSIDSubscribeConvoEvents, query("ticket", unused), "").fails(http.StatusForbidden, "Blocked")
	w.handshake(mlsapi.NSIDSubscribeConvoEvents, nil,
		alice.authorization(mlsapi.NSIDSubscribeConvoEvents)).fails(http.StatusForbidden, "Blocked")
	alice.get(mlsapi.NSIDStreamConvoEvents).fails(http.StatusForbidden, "Blocked")
	bob.create()
	other.read() // of others goes on
}

// An account that is refused while its subscription begins has none afterwards.
func TestSubscriptionThatBeginsTooLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, gated(accounts.ModeOpen))
	alice := w.user()
	begun := make(chan *subscription, 1)
	w.server.SubscribeChecked(func(context.Context, events.Request) (api.Subscription, bool, error) {
		s := &subscription{closed: make(chan bool)}
		begun <- s
		w.block(alice) // after the first check
		return s, false, nil
	})
	w.handshake(mlsapi.NSIDSubscribeConvoEvents, nil,
		alice.authorization(mlsapi.NSIDSubscribeConvoEvents)).fails(http.StatusForbidden, "Blocked")
	(<-begun).ended(t)
}

// A node that is not open to all says so to those whom it does not serve, and learns of those who
// are invited.
func TestClosedNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, outsider := w.user(), w.user(), w.user()
	alice.create(bob)
	w.mode = accounts.ModeClosed
	closed := w.boot()
	for _, u := range []*user{alice, bob} {
		u.on(closed).get(mlsapi.NSIDGetConvos).ok()
	}
	message := outsider.on(closed).get(mlsapi.NSIDGetConvos).fails(http.StatusForbidden, "NotPermitted")
	if message != accounts.ErrNotAdmitted.Error() {
		t.Errorf("the message is %q", message)
	}
}

// A server whose gate could not be loaded serves nobody.
func TestGateThatIsNotLoaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, gated(accounts.ModeOpen))
	alice := w.user()
	gate, err := accounts.NewGate(accounts.GateConfig{DB: w.db})
	if err != nil {
		t.Fatal(err)
	}
	w.server.Guard(gate)
	alice.get(mlsapi.NSIDGetConvos).fails(http.StatusServiceUnavailable, "ServiceUnavailable")
}
