package api_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/mls"
	"mlsd/welcome"
)

func release(w *world) { w.policy.OnExpiry = welcome.Release }
func consume(w *world) { w.policy.OnExpiry = welcome.Consume }

// fetch asks for u's Welcome; params are pairs of name and value.
func (u *user) fetch(c *convo, params ...string) answer {
	u.w.t.Helper()
	return u.get(mlsapi.NSIDGetWelcome, append([]string{"convoId", c.id}, params...)...)
}

// fetched is fetch that succeeds.
func (u *user) fetched(c *convo, params ...string) mlsapi.GetWelcomeOutput {
	u.w.t.Helper()
	return read[mlsapi.GetWelcomeOutput](u.w.t, u.fetch(c, params...).ok())
}

// confirm confirms the outcome of joining. device is nil for a client that names none.
func (u *user) confirm(c *convo, success bool, device *string) answer {
	u.w.t.Helper()
	return u.post(mlsapi.NSIDConfirmWelcome,
		&mlsapi.ConfirmWelcomeInput{ConvoID: c.id, Success: success, DeviceID: device})
}

// deviceID is the id that the server gives u's device.
func (u *user) deviceID() string {
	u.w.t.Helper()
	body, _ := u.KeyPackage(u.w.t)
	kp, err := mls.ParseKeyPackage(body)
	if err != nil {
		u.w.t.Fatal(err)
	}
	sum := sha256.Sum256(kp.SignatureKey)
	return hex.EncodeToString(sum[:])
}

// swept are the rows that sweeps have ended.
type swept = map[string]int64

// sweepWelcomes does the sweeps of Welcomes once.
func (w *world) sweepWelcomes() swept {
	w.t.Helper()
	return pgtest.Sweep(w.t, welcome.Sweeps(w.db, w.policy)...)
}

// age lets time pass for Welcomes.
func (w *world) age(d time.Duration) {
	w.t.Helper()
	pgtest.Age(w.t, w.db, "welcomes", d)
	pgtest.Age(w.t, w.db, "welcome_bodies", d)
}

// states returns the states of u's Welcomes, oldest first.
func (u *user) states(c *convo) string {
	u.w.t.Helper()
	var states string
	err := u.w.db.QueryRow(context.Background(), `
		SELECT coalesce(string_agg(state, ' ' ORDER BY epoch, created_at, device_id), '') FROM welcomes
		WHERE convo_id = $1 AND recipient_did = $2`, c.id, u.did()).Scan(&states)
	if err != nil {
		u.w.t.Fatal(err)
	}
	return states
}

// delivery is one Welcome on its way to bob, as the steps of TestWelcomeStates see it.
type delivery struct {
	bob   *user
	c     *convo
	first *mlsapi.GetWelcomeOutput // the first fetch
	last  *mlsapi.GetWelcomeOutput // the one before this
}

type step func(d *delivery)

// fetches is a fetch that gets the same bytes, under a new lease or that of the fetch before.
func fetches(lease string) step {
	return func(d *delivery) {
		d.bob.w.t.Helper()
		out := d.bob.fetched(d.c)
		if d.first == nil {
			d.first = &out
		}
		if *out.State != "in_flight" || *out.Epoch != 1 || !bytes.Equal(out.Welcome, d.first.Welcome) {
			d.bob.w.t.Fatalf("fetched %+v", out)
		}
		if d.last != nil {
			same := out.GraceExpiresAt.Equal(d.last.GraceExpiresAt.Time)
			if same != (lease == "same lease") {
				d.bob.w.t.Fatalf("the grace ends at %s, before it ended at %s; want the %s", out.GraceExpiresAt,
					d.last.GraceExpiresAt, lease)
			}
		}
		d.last = &out
	}
}

func refused(status int, name string) step {
	return func(d *delivery) { d.bob.w.t.Helper(); d.bob.fetch(d.c).fails(status, name) }
}

// confirms is a confirmation, after which the Welcome is in state.
func confirms(success bool, state string) step {
	return func(d *delivery) {
		d.bob.w.t.Helper()
		out := read[mlsapi.ConfirmWelcomeOutput](d.bob.w.t, d.bob.confirm(d.c, success, nil).ok())
		if !out.Confirmed || *out.State != state {
			d.bob.w.t.Fatalf("confirmed: %+v, want %s", out, state)
		}
		is(state)(d)
	}
}

func unconfirmed(success bool) step {
	return func(d *delivery) {
		d.bob.w.t.Helper()
		d.bob.confirm(d.c, success, nil).fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)
	}
}

// passes lets time pass, for the client too.
func passes(by time.Duration) step {
	return func(d *delivery) {
		d.bob.w.age(by)
		if d.last != nil {
			*d.last.GraceExpiresAt = lexcodec.NewDatetime(d.last.GraceExpiresAt.Add(-by))
		}
	}
}

func sweeps(want swept) step {
	return func(d *delivery) {
		d.bob.w.t.Helper()
		if diff := cmp.Diff(want, d.bob.w.sweepWelcomes()); diff != "" {
			d.bob.w.t.Fatalf("the sweeps did (-want +got):\n%s", diff)
		}
	}
}

func is(states string) step {
	return func(d *delivery) {
		d.bob.w.t.Helper()
		if got := d.bob.states(d.c); got != states {
			d.bob.w.t.Fatalf("the Welcome is %s, want %s", got, states)
		}
	}
}

var (
	gone    = refused(http.StatusGone, mlsapi.ErrWelcomeConsumed)
	missing = refused(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)
)

// anyPolicy are the steps of a Welcome that are the same with every ExpiryPolicy.
var anyPolicy = map[string][]step{
	"joined": {is("available"), fetches("new lease"), is("in_flight"), confirms(true, "consumed"), gone, gone},
	"fetched twice": {fetches("new lease"), fetches("same lease"), passes(4 * time.Minute), fetches("same lease"),
		passes(59 * time.Second), sweeps(swept{}), fetches("same lease"), confirms(true, "consumed")},
	"confirmed twice":        {fetches("new lease"), confirms(true, "consumed"), confirms(true, "consumed"), gone},
	"confirmed, then failed": {fetches("new lease"), confirms(true, "consumed"), confirms(false, "consumed"), gone},
	"failed, then confirmed": {fetches("new lease"), confirms(false, "in_flight"), fetches("same lease"),
		confirms(true, "consumed"), gone},
	"failed twice": {fetches("new lease"), confirms(false, "in_flight"), confirms(false, "in_flight"),
		fetches("same lease")},
	"never fetched": {unconfirmed(true), unconfirmed(false), is("available"), fetches("new lease")},
	"late, before the sweep": {fetches("new lease"), passes(6 * time.Minute), confirms(true, "consumed"), gone,
		sweeps(swept{})},
	"late, once it was failed": {fetches("new lease"), confirms(false, "in_flight"), passes(6 * time.Minute),
		confirms(true, "consumed"), gone},
	"failed, grace over": {fetches("new lease"), confirms(false, "in_flight"), passes(6 * time.Minute),
		fetches("new lease"), confirms(true, "consumed"), gone},
	"failed, grace over, swept": {fetches("new lease"), confirms(false, "in_flight"), passes(6 * time.Minute),
		sweeps(swept{"welcomes_released": 1}), is("available"), confirms(false, "available"), fetches("new lease"),
		confirms(true, "consumed"), gone},
	"kept for 90 days": {passes(90*day - time.Minute), sweeps(swept{}), fetches("new lease")},
	"expired": {passes(90*day + time.Minute), sweeps(swept{"welcomes_expired": 1, "welcome_bodies": 1}),
		is("expired"), missing, unconfirmed(true)},
	"erased": {fetches("new lease"), confirms(true, "consumed"), passes(23 * time.Hour), sweeps(swept{}),
		passes(2 * time.Hour), sweeps(swept{"welcome_bodies": 1}), gone, confirms(true, "consumed")},
	"swept in between": {sweeps(swept{}), fetches("new lease"), sweeps(swept{}), fetches("same lease"),
		confirms(true, "consumed"), sweeps(swept{})},
}

// TestWelcomeStates walks the whole state table over HTTP.
func TestWelcomeStates(t *testing.T) {
	t.Parallel()
	ways := map[string][]step{
		"silent/release": {fetches("new lease"), passes(6 * time.Minute), fetches("new lease"), passes(6 * time.Minute),
			fetches("new lease"), confirms(true, "consumed"), gone},
		"silent, swept/release": {fetches("new lease"), passes(6 * time.Minute), sweeps(swept{"welcomes_released": 1}),
			is("available"),
			fetches("new lease"), is("in_flight")},
		"late/release": {fetches("new lease"), passes(6 * time.Minute), sweeps(swept{"welcomes_released": 1}),
			confirms(true, "consumed"), gone},
		"late failure/release": {fetches("new lease"), passes(6 * time.Minute), sweeps(swept{"welcomes_released": 1}),
			confirms(false, "available"), fetches("new lease")},
		"second silence after a failure/release": {fetches("new lease"), confirms(false, "in_flight"),
			passes(6 * time.Minute),
			fetches("new lease"), passes(6 * time.Minute), sweeps(swept{"welcomes_released": 1}), fetches("new lease")},
		"expired in flight/release": {fetches("new lease"), passes(91 * day),
			sweeps(swept{"welcomes_released": 1, "welcomes_expired": 1, "welcome_bodies": 1}), missing},

		"silent/consume": {fetches("new lease"), passes(6 * time.Minute), gone},
		"silent, swept/consume": {fetches("new lease"), passes(6 * time.Minute), sweeps(swept{"welcomes_consumed": 1}),
			is("consumed"), gone,
			confirms(true, "consumed")},
		"late failure/consume": {fetches("new lease"), passes(6 * time.Minute), sweeps(swept{"welcomes_consumed": 1}),
			confirms(false, "consumed"), gone},
		"late failure before the sweep/consume": {fetches("new lease"), passes(6 * time.Minute), confirms(false, "consumed"),
			gone,
			sweeps(swept{})},
		"second silence after a failure/consume": {fetches("new lease"), confirms(false, "in_flight"),
			passes(6 * time.Minute),
			fetches("new lease"), passes(6 * time.Minute), sweeps(swept{"welcomes_consumed": 1}), gone},
		"expired in flight/consume": {fetches("new lease"), passes(91 * day), sweeps(swept{"welcomes_consumed": 1}), gone},
	}
	for name, steps := range anyPolicy {
		ways[name+"/release"], ways[name+"/consume"] = steps, steps
	}
	for _, policy := range []struct {
		name string
		set  func(*world)
	}{{"/release", release}, {"/consume", consume}} {
		t.Run(policy.name[1:], func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, policy.set)
			for name, steps := range ways {
				if name, ok := strings.CutSuffix(name, policy.name); ok {
					t.Run(name, func(t *testing.T) { w.walk(t, steps) })
				}
			}
		})
	}
}

// walk takes a Welcome through the steps. Time and the sweeps are common to all Welcomes of the
// world, so walk removes the Welcome of the walk before.
func (w *world) walk(t *testing.T, steps []step) {
	inner := w.within(t)
	bob := inner.user()
	d := &delivery{bob: bob, c: inner.user().create(bob)}
	for _, s := range steps {
		s(d)
	}
	inner.check()
	inner.exec(`TRUNCATE convos, members, messages, welcomes, welcome_bodies, key_packages, key_package_init_keys, ` +
		`idempotency_keys`)
}

// second-fetch-410: fetching consumed the KeyPackage that the grace clause required.
func TestSecondFetch410(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	first := bob.fetch(c)
	if second := bob.on(w.boot()).fetch(c); string(second.ok()) != string(first.ok()) {
		t.Fatalf("the second fetch got %s, the first %s", second.body, first.body)
	}
}

// confirmed-nothing: confirmed: true for zero rows.
func TestConfirmedNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	other := w.user().deviceID()
	for _, success := range []bool{true, false} {
		alice.confirm(c, success, nil).fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)  // never had one
		bob.confirm(c, success, nil).fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)    // has not fetched it
		bob.confirm(c, success, &other).fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound) // has no such device
	}
	if s := bob.states(c); s != "available" {
		t.Fatalf("bob's Welcome is %s", s)
	}
}

// sliding-grace: each re-fetch restarted the five minutes.
func TestSlidingGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	first := bob.fetched(c)
	for range 4 {
		w.age(time.Minute)
		bob.fetched(c)
	}
	w.age(time.Minute)
	if done := w.sweepWelcomes(); done["welcomes_released"] != 1 {
		t.Fatalf("five minutes after the first fetch the sweeps did %v", done)
	}
	if again := bob.fetched(c); !again.GraceExpiresAt.After(first.GraceExpiresAt.Time) {
		t.Fatalf("the new lease ends at %s, the first one ended at %s", again.GraceExpiresAt, first.GraceExpiresAt)
	}
}

// pair makes two devices of bob, and a convo with one Welcome for both.
func (w *world) pair() (phone, laptop *user, c *convo) {
	w.t.Helper()
	alice, phone := w.user(), w.user()
	laptop = phone.device()
	phone.publish()
	laptop.publish()
	group := newGroup(w.t)
	in := alice.creation(group)
	in.InitialMembers = append(in.InitialMembers, phone.did())
	in.WelcomeMessage = mlstest.Welcome(w.t, alice.claim(phone)...)
	view := read[mlsapi.ConvoView](w.t, alice.post(mlsapi.NSIDCreateConvo, in).ok())
	return phone, laptop, &convo{id: view.ID, group: group, epoch: 1}
}

// any-device: one device's fetch consumed every device's Welcome.
func TestAnyDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	phone, laptop, c := w.pair()
	first := phone.fetched(c, "deviceId", phone.deviceID())
	if n := w.count(`SELECT count(*) FROM welcomes WHERE state = 'available'`); n != 1 {
		t.Fatalf("after one device's fetch %d Welcomes are available", n)
	}
	phone.confirm(c, true, text(phone.deviceID())).ok()
	phone.fetch(c, "deviceId", phone.deviceID()).fails(http.StatusGone, mlsapi.ErrWelcomeConsumed)

	second := laptop.fetched(c, "deviceId", laptop.deviceID())
	if *second.KeyPackageRef == *first.KeyPackageRef || !bytes.Equal(second.Welcome, first.Welcome) {
		t.Fatalf("the laptop got %s, the phone %s", *second.KeyPackageRef, *first.KeyPackageRef)
	}
	byRef := laptop.fetched(c, "keyPackageRef", *second.KeyPackageRef)
	if diff := cmp.Diff(second, byRef); diff != "" {
		t.Fatalf("by its ref the Welcome is another one (-device +ref):\n%s", diff)
	}
	phone.fetch(c, "keyPackageRef", *first.KeyPackageRef).fails(http.StatusGone, mlsapi.ErrWelcomeConsumed)
	phone.fetch(c, "keyPackageRef", "00ff").fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)
	phone.fetch(c, "keyPackageRef", "zz").fails(http.StatusBadRequest, "InvalidRequest")
	phone.fetch(c, "deviceId", "another").fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)

	out := read[mlsapi.ConfirmWelcomeOutput](t, laptop.post(mlsapi.NSIDConfirmWelcome,
		&mlsapi.ConfirmWelcomeInput{ConvoID: c.id, Success: true, KeyPackageRef: second.KeyPackageRef}).ok())
	if *out.State != "consumed" || phone.states(c) != "consumed consumed" {
		t.Fatalf("the laptop's confirmation is %+v, the Welcomes are %s", out, phone.states(c))
	}
}

// A client that names no device gets its DID's Welcomes one after the other. It confirms the
// Welcome that it fetched.
func TestAnyDeviceUnnamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	phone, _, c := w.pair()
	refs := map[string]bool{}
	for _, want := range []string{"available consumed", "consumed consumed"} {
		refs[*phone.fetched(c).KeyPackageRef] = true
		phone.confirm(c, true, nil).ok()
		phone.confirm(c, true, nil).ok()
		if states := strings.Fields(phone.states(c)); strings.Join(sorted(states), " ") != want {
			t.Fatalf("the Welcomes are %s, want %s", states, want)
		}
	}
	if len(refs) != 2 {
		t.Fatalf("%d Welcomes were fetched", len(refs))
	}
	phone.fetch(c).fails(http.StatusGone, mlsapi.ErrWelcomeConsumed)
}

// The bytes of one device's Welcome are erased. Those of the other's stay.
func TestErasureSparesOtherDevices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	phone, laptop, c := w.pair()
	first := phone.fetched(c, "deviceId", phone.deviceID())
	phone.confirm(c, true, text(phone.deviceID())).ok()
	w.age(25 * time.Hour)
	if diff := cmp.Diff(swept{}, w.sweepWelcomes()); diff != "" {
		t.Fatalf("the sweeps did (-want +got):\n%s", diff)
	}
	second := laptop.fetched(c, "deviceId", laptop.deviceID())
	if !bytes.Equal(second.Welcome, first.Welcome) {
		t.Fatal("the laptop got other bytes")
	}
	laptop.confirm(c, true, text(laptop.deviceID())).ok()
	w.age(25 * time.Hour)
	if diff := cmp.Diff(swept{"welcome_bodies": 1}, w.sweepWelcomes()); diff != "" {
		t.Fatalf("once both have joined, the sweeps did (-want +got):\n%s", diff)
	}
}

// gc-kills-welcome: cleaning up KeyPackages made a Welcome unfetchable a day later.
func TestGCKillsWelcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	pgtest.Age(t, w.db, "key_packages", 31*day)
	pgtest.Age(t, w.db, "idempotency_keys", 31*day, "created_at")
	if done := w.sweepKeyPackages(); done["key_packages_deleted"] != 1 {
		t.Fatalf("the sweeps of KeyPackages did %v", done)
	}
	w.age(30 * time.Hour)
	w.sweepWelcomes()
	bob.fetched(c)
	w.age(30 * time.Hour)
	w.sweepWelcomes()
	bob.fetched(c)
	bob.confirm(c, true, nil).ok()
}

// stale-welcome: a re-add kept the old Welcome (DO NOTHING).
func TestStaleWelcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, state := range []string{"available", "in_flight", "consumed"} {
		for _, way := range []string{"left", "removed"} {
			t.Run(state+", "+way, func(t *testing.T) {
				w := w.within(t)
				alice, bob := w.user(), w.user()
				c := alice.create(bob)
				old := ""
				if state != "available" {
					old = *bob.fetched(c).KeyPackageRef
				}
				if state == "consumed" {
					bob.confirm(c, true, nil).ok()
				}
				if way == "left" {
					bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
				} else {
					alice.remove(c, bob)
				}
				bob.fetch(c).fails(http.StatusForbidden, mlsapi.ErrNotMember)
				ended := strings.NewReplacer("available", "superseded", "in_flight", "superseded").Replace(state)
				if s := bob.states(c); s != ended {
					t.Fatalf("after the departure the Welcome is %s", s)
				}
				addition := alice.addition(c, bob)
				alice.post(mlsapi.NSIDAddMembers, addition).ok()
				got := bob.fetched(c)
				if !bytes.Equal(got.Welcome, addition.WelcomeMessage) || *got.Epoch != c.epoch+1 {
					t.Fatalf("bob got the Welcome of epoch %d, want %d", *got.Epoch, c.epoch+1)
				}
				if old != "" && state != "consumed" {
					bob.fetch(c, "keyPackageRef", old).fails(http.StatusNotFound, mlsapi.ErrWelcomeNotFound)
				}
				bob.confirm(c, true, nil).ok()
				if s := bob.states(c); s != ended+" consumed" {
					t.Fatalf("the Welcomes are %s", s)
				}
			})
		}
	}
}

// first-recipient-only: a batch Welcome reached one of its recipients. Here every device of every
// recipient gets its own, whether createConvo or addMembers brings it.
func TestFirstRecipientOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	welcomed := func(c *convo, epoch int64, devices ...*user) {
		t.Helper()
		refs := map[string]bool{}
		for i, u := range devices {
			out := u.fetched(c, "deviceId", u.deviceID())
			if *out.Epoch != epoch {
				t.Fatalf("device %d got the Welcome of epoch %d, want %d", i, *out.Epoch, epoch)
			}
			refs[*out.KeyPackageRef] = true
			u.confirm(c, true, text(u.deviceID())).ok()
			u.fetch(c, "deviceId", u.deviceID()).fails(http.StatusGone, mlsapi.ErrWelcomeConsumed)
		}
		if len(refs) != len(devices) {
			t.Errorf("%d devices got Welcomes for %d KeyPackages", len(devices), len(refs))
		}
	}
	people := func() (phones, all []*user) {
		phones = []*user{w.user(), w.user(), w.user()}
		others := []*user{phones[0].device(), phones[0].device(), phones[2].device()}
		for _, device := range others {
			device.publish()
		}
		return phones, append(others, phones...)
	}
	phones, first := people()
	c := alice.create(phones...)
	phones, second := people()
	alice.add(c, phones...)
	welcomed(c, 1, first...)
	welcomed(c, 2, second...)
}

// backfill-dead: adding a column with a default made WHERE state IS NULL match nothing and consumed
// Welcomes came back. Here no state column can be NULL.
func TestBackfillDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.count(`
		SELECT count(*) FROM information_schema.columns
		WHERE table_schema = 'public' AND column_name = 'state' AND is_nullable = 'NO' AND table_name IN ('welcomes',
			'key_packages')`)
	if n != 2 {
		t.Fatalf("%d of 2 state columns are NOT NULL", n)
	}
	if n := w.count(`
		SELECT count(*) FROM information_schema.columns
		WHERE table_schema = 'public' AND column_name = 'state' AND is_nullable = 'YES'`); n != 0 {
		t.Fatalf("%d state columns may be NULL", n)
	}
}

// Many requests at once on two nodes open one lease, and end it once.
func TestWelcomeAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.user()
	c := w.user().create(bob)
	nodes := []*user{bob, bob.on(w.boot())}
	var first answer
	for i, a := range together(20, func(i int) answer { return nodes[i%2].fetch(c) }) {
		if i == 0 {
			first = a
		}
		if string(a.ok()) != string(first.ok()) {
			t.Fatalf("two fetches got %s and %s", a.body, first.body)
		}
	}
	if n := w.count(`SELECT attempts FROM welcomes`); n != 1 {
		t.Fatalf("%d leases were opened", n)
	}
	for _, a := range together(20, func(i int) answer {
		if i%4 == 3 {
			return nodes[i%2].fetch(c)
		}
		return nodes[i%2].confirm(c, true, nil)
	}) {
		if a.status != http.StatusGone {
			a.ok()
		}
	}
	if n := w.count(`SELECT count(*) FROM welcomes WHERE state = 'consumed' AND version = 2`); n != 1 {
		t.Fatal("the Welcome was not consumed once")
	}
}

// A18: a reason of 1,025 bytes was refused, and the failed join was not recorded. Now a reason can be
// as long as a body. The server keeps its first 1,024 bytes, and cuts no character in two.
func TestLongReasonOfAFailedJoin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	bob.fetch(c).ok()
	for _, tc := range []struct {
		details string
		kept    int
	}{
		{strings.Repeat("x", 1024), 1024},
		{strings.Repeat("x", 1025), 1024},
		{"x" + strings.Repeat("é", 512), 1023},
		{"xx" + strings.Repeat("\U0001f701", 60_000), 1022},
	} {
		pgtest.Age(t, w.db, "welcomes", time.Hour)
		bob.fetch(c).ok() // a lease records one failure
		in := &mlsapi.ConfirmWelcomeInput{ConvoID: c.id, ErrorDetails: &tc.details}
		bob.post(mlsapi.NSIDConfirmWelcome, in).ok()
		var kept string
		if err := w.db.QueryRow(t.Context(), `SELECT last_error FROM welcomes WHERE convo_id = $1`,
			c.id).Scan(&kept); err != nil {
			t.Fatal(err)
		}
		if kept != tc.details[:tc.kept] {
			t.Errorf("of %d bytes %d are kept, want %d", len(tc.details), len(kept), tc.kept)
		}
	}
}
