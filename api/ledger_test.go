package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
	"mlsd/mls"
)

// batch is the input that publishes n KeyPackages at once.
func (u *user) batch(n int, options ...mlstest.Option) (*mlsapi.PublishKeyPackagesInput, []mls.KeyPackageRef) {
	u.w.t.Helper()
	in, refs := &mlsapi.PublishKeyPackagesInput{KeyPackages: make([]mlsapi.Item, n)}, make([]mls.KeyPackageRef, n)
	for i := range n {
		in.KeyPackages[i].CipherSuite = mlstest.Suite.String()
		in.KeyPackages[i].KeyPackage, refs[i] = u.KeyPackage(u.w.t, options...)
	}
	return in, refs
}

// stock publishes n KeyPackages at once.
func (u *user) stock(n int, options ...mlstest.Option) []mls.KeyPackageRef {
	u.w.t.Helper()
	in, refs := u.batch(n, options...)
	for i, status := range u.statuses(in) {
		if status != "published "+refs[i].String() {
			u.w.t.Fatalf("KeyPackage %d: %s", i, status)
		}
	}
	return refs
}

// statuses publishes a batch and returns the status of each item.
func (u *user) statuses(in *mlsapi.PublishKeyPackagesInput) []string {
	u.w.t.Helper()
	out := read[mlsapi.PublishKeyPackagesOutput](u.w.t, u.post(mlsapi.NSIDPublishKeyPackages, in).ok())
	got := make([]string, len(out.Results))
	for i, r := range out.Results {
		got[i] = r.Status
		if r.KeyPackageRef != nil {
			got[i] += " " + *r.KeyPackageRef
		}
		if r.Error != nil {
			got[i] += " " + *r.Error
			if r.Message == nil || len(*r.Message) == 0 || len(*r.Message) > 1024 {
				u.w.t.Errorf("item %d: the message is %v", i, r.Message)
			}
		}
	}
	return got
}

// stats is getKeyPackageStats. params are pairs of name and value.
func (u *user) stats(params ...string) mlsapi.GetKeyPackageStatsOutput {
	u.w.t.Helper()
	return read[mlsapi.GetKeyPackageStatsOutput](u.w.t, u.get(mlsapi.NSIDGetKeyPackageStats, params...).ok())
}

// sweepKeyPackages does the sweeps of KeyPackages once.
func (w *world) sweepKeyPackages() swept {
	w.t.Helper()
	return pgtest.Sweep(w.t, keypackages.Sweeps(w.db)...)
}

// drain: any user could empty another's KeyPackages. A caller gets a bounded number from a device,
// with any requests. Then the answer says so, and has the last-resort one. Other callers get
// theirs.
func TestDrain(t *testing.T) {
	t.Parallel()
	const limit, tries = keypackages.Budget, keypackages.Budget + 15
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	bob.stock(2*limit + 5)
	bob.meets(alice) // people who share no convo have less
	key := *newKey()
	first := alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String(), "idempotencyKey", key)
	first.ok()
	for range 5 { // a retry counts once
		alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String(), "idempotencyKey", key).replays(first)
	}
	nodes := []*user{alice, alice.on(w.boot())}
	served := 1
	claim := func(i int) answer {
		params := []string{"dids", bob.did().String()}
		if i%3 == 0 {
			params = append(params, "idempotencyKey", *newKey())
		}
		return nodes[i%2].get(mlsapi.NSIDGetKeyPackages, params...)
	}
	answers := together(limit-2, claim)
	// One KeyPackage is left. A claim of it is in its COMMIT when another begins.
	answers = append(answers, w.inCommit(mlsapi.NSIDGetKeyPackages,
		func() answer { return claim(limit) }, func() answer { return claim(limit + 1) })...)
	answers = append(answers, together(tries-limit, claim)...)
	for i, a := range answers {
		out := read[mlsapi.GetKeyPackagesOutput](t, a.ok())
		served += len(out.KeyPackages)
		if len(out.KeyPackages) != 1 && (len(out.Limited) != 1 || out.Limited[0] != bob.did() || len(out.Missing) != 1) {
			t.Fatalf("claim %d is answered with %s", i, a.body)
		}
	}
	if served != limit {
		t.Fatalf("one caller got %d KeyPackages of a device, where %d are its limit", served, limit)
	}
	last := bob.stock(1, mlstest.LastResort)[0]
	out := alice.claimed(bob)
	if len(out.Limited) != 1 || len(out.Missing) != 0 || len(out.KeyPackages) != 1 ||
		*out.KeyPackages[0].KeyPackageRef != last.String() {
		t.Fatalf("beyond the limit alice gets %+v", out)
	}
	if out := w.user().claimed(bob); len(out.Limited) != 0 || len(out.KeyPackages) != 1 || *out.KeyPackages[0].LastResort {
		t.Fatalf("another caller gets %+v", out)
	}
	laptop := bob.device()
	ref := laptop.stock(1)[0]
	if out := alice.claimed(bob); len(out.KeyPackages) != 2 || len(out.Limited) != 1 ||
		*out.KeyPackages[0].KeyPackageRef != ref.String() && *out.KeyPackages[1].KeyPackageRef != ref.String() {
		t.Fatalf("with another device there, alice gets %+v", out)
	}
	pgtest.Age(t, w.db, "key_packages", 24*time.Hour, "claimed_at")
	if out := alice.claimed(bob); len(out.Limited) != 0 || *out.KeyPackages[0].LastResort {
		t.Fatalf("a day later alice gets %+v", out)
	}
}

// Each KeyPackage of a batch is judged on its own. The results are in the order of the request.
func TestPublishBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	in, refs := alice.batch(8)
	foreign, _ := w.user().KeyPackage(t)
	soon, far := lexcodec.NewDatetime(time.Now().Add(-time.Minute)), lexcodec.NewDatetime(time.Now().Add(91*day))
	in.KeyPackages[1].KeyPackage = foreign
	in.KeyPackages[2] = in.KeyPackages[0]
	in.KeyPackages[3].CipherSuite = "none"
	in.KeyPackages[4].Expires = &soon
	in.KeyPackages[5].Expires = &far
	in.KeyPackages[6].KeyPackage = []byte("noise")
	want := []string{"published " + refs[0].String(), "rejected InvalidKeyPackage", "duplicate " + refs[0].String(),
		"rejected InvalidCipherSuite", "rejected InvalidKeyPackage", "rejected ExpirationTooFar",
		"rejected InvalidKeyPackage",
		"published " + refs[7].String()}
	if diff := cmp.Diff(want, alice.statuses(in)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	want[0], want[7] = "duplicate "+refs[0].String(), "duplicate "+refs[7].String()
	for _, key := range []*string{nil, newKey()} { // another key is another request
		in.IdempotencyKey = key
		if diff := cmp.Diff(want, alice.statuses(in)); diff != "" {
			t.Fatalf("again (-want +got)\n%s", diff)
		}
	}
	if n := w.count(`SELECT count(*) FROM key_packages`); n != 2 {
		t.Fatalf("%d are stored", n)
	}
	alice.post(mlsapi.NSIDPublishKeyPackage, // both methods use the same stock
		&mlsapi.PublishKeyPackageInput{KeyPackage: in.KeyPackages[7].KeyPackage, CipherSuite: mlstest.Suite.String()}).ok()

	many, _ := alice.batch(101)
	alice.post(mlsapi.NSIDPublishKeyPackages, many).fails(http.StatusBadRequest, mlsapi.ErrTooManyKeyPackages)
	alice.post(mlsapi.NSIDPublishKeyPackages, &mlsapi.PublishKeyPackagesInput{}).fails(http.StatusBadRequest,
		"InvalidRequest")
	for range 4 {
		alice.stock(100)
	}
	many, _ = alice.batch(100)
	taken := 0
	for _, status := range alice.statuses(many) {
		if strings.HasPrefix(status, "published ") {
			taken++
		} else if status != "rejected TooManyKeyPackages" {
			t.Fatal(status)
		}
	}
	if taken != keypackages.MaxAvailable-402 {
		t.Fatalf("%d of 100 were taken beside 402", taken)
	}
}

// The same batch without a key comes many times at once, on two nodes. Each KeyPackage is stored
// once, and one of the requests published it.
func TestPublishBatchAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	in, refs := alice.batch(10)
	nodes := []*user{alice, alice.on(w.boot())}
	published := 0
	for _, a := range together(12, func(i int) answer { return nodes[i%2].post(mlsapi.NSIDPublishKeyPackages, in) }) {
		for i, r := range read[mlsapi.PublishKeyPackagesOutput](t, a.ok()).Results {
			if r.KeyPackageRef == nil || *r.KeyPackageRef != refs[i].String() {
				t.Fatalf("%s", a.body)
			}
			if r.Status == "published" {
				published++
			}
		}
	}
	if n := w.count(`SELECT count(*) FROM key_packages`); n != 10 || published != 10 {
		t.Fatalf("%d are stored, %d were published", n, published)
	}
}

// The counts that an owner gets, from its first KeyPackage to its last.
func TestKeyPackageStats(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	if s := bob.stats(); !s.NeedsReplenish || s.Available != 0 || s.Threshold != keypackages.Threshold ||
		s.DepletesAt != nil {
		t.Fatalf("of nothing: %+v", s)
	}
	bob.stock(keypackages.Threshold + 3)
	bob.stock(1, mlstest.LastResort)
	if s := bob.stats(); s.NeedsReplenish || s.Available != keypackages.Threshold+3 || s.LastResort != 1 ||
		s.DepletesAt != nil {
		t.Fatalf("of enough: %+v", s)
	}
	if s := w.user().stats(); s.Available != 0 || s.LastResort != 0 {
		t.Fatalf("another's: %+v", s)
	}
	alice.create(bob) // claims and uses one; bob publishes one more for it
	for range 3 {
		alice.claim(bob)
	}
	laptop := bob.device()
	laptop.stock(2)
	now := time.Now()
	s := bob.stats()
	if s.Available != keypackages.Threshold+2 || s.Claimed != 3 || s.Consumed != 1 || s.LastResort != 1 ||
		!s.NeedsReplenish ||
		*s.Orphaned != 0 || *s.Expired != 0 {
		t.Fatalf("%+v", s)
	}
	if s.DepletesAt == nil || s.DepletesAt.Before(now.Add(time.Hour)) || s.DepletesAt.After(now.Add(10*time.Hour)) {
		t.Fatalf("20 are left after 4 claims in the device's first hour: gone at %v", s.DepletesAt)
	}
	if len(s.ByCipherSuite) != 1 || s.ByCipherSuite[0].CipherSuite != mlstest.Suite.String() ||
		s.ByCipherSuite[0].Available != s.Available {
		t.Fatalf("by suite: %+v", s.ByCipherSuite)
	}
	if len(s.ByDevice) != 2 || s.ByDevice[0].DeviceID != laptop.deviceID() || !s.ByDevice[0].NeedsReplenish ||
		s.ByDevice[1].DeviceID != bob.deviceID() || s.ByDevice[1].NeedsReplenish || s.ByDevice[1].DepletesAt == nil {
		t.Fatalf("by device: %+v", s.ByDevice)
	}
	if one := bob.stats("deviceId", bob.deviceID(), "cipherSuite", mlstest.Suite.String()); one.NeedsReplenish ||
		one.Available != keypackages.Threshold ||
		len(one.ByDevice) != 1 {
		t.Fatalf("of the phone: %+v", one)
	}
	if none := bob.stats("cipherSuite", mls.SuiteP256AES128.String()); none.Available+none.LastResort+none.Consumed != 0 ||
		!none.NeedsReplenish {
		t.Fatalf("of another suite: %+v", none)
	}
	bob.get(mlsapi.NSIDGetKeyPackageStats, "cipherSuite", "none").fails(http.StatusBadRequest,
		mlsapi.ErrInvalidCipherSuite)
	pgtest.Age(t, w.db, "key_packages", time.Hour, "claim_expires_at")
	if s := bob.stats(); s.Claimed != 0 || *s.Orphaned != 3 {
		t.Fatalf("once the claims have lapsed: %+v", s)
	}
}

// Many claims at once on two nodes leave a device fewer KeyPackages than the threshold. That makes
// one signal, until enough are published.
func TestKeyPackagesLow(t *testing.T) {
	t.Parallel()
	const left = 10
	w := newWorld(t)
	bob := w.user()
	other := w.boot()
	signals := func(want int) {
		t.Helper()
		if n := w.count(`SELECT count(*) FROM key_package_signals WHERE kind = 'low' AND did = $1`, bob.did()); n != want {
			t.Fatalf("%d signals, want %d", n, want)
		}
	}
	bob.stock(2 * keypackages.Threshold)
	raised := make([]time.Time, 2)
	for i := range raised {
		signals(0)
		claims := bob.stats().Available - left
		by := make([]*user, claims)
		for i := range by {
			by[i] = w.user()
			if i%2 == 1 {
				by[i] = by[i].on(other)
			}
		}
		bob.meets(by...) // people who share no convo have a smaller budget
		for _, a := range together(len(by),
			func(i int) answer { return by[i].get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String()) }) {
			if out := read[mlsapi.GetKeyPackagesOutput](t, a.ok()); len(out.KeyPackages) != 1 {
				t.Fatalf("a claim got %s", a.body)
			}
		}
		signals(1)
		var count int
		row := w.db.QueryRow(t.Context(), `SELECT count, raised_at FROM key_package_signals`)
		if err := row.Scan(&count, &raised[i]); err != nil || count < left || count >= keypackages.Threshold {
			t.Fatalf("raised with %d available, %v", count, err)
		}
		w.user().claimed(bob)
		bob.stock(1)
		bob.stock(keypackages.Threshold - left - 1)
		signals(1)
		bob.stock(1)
	}
	signals(0)
	if !raised[1].After(raised[0]) {
		t.Fatal("the second crossing has no signal of its own")
	}
}

// The KeyPackage of a claim that lapses is never served again. The owner gets an event. The claimer
// can still use the KeyPackage, and no other caller can.
func TestOrphanedClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	bob.publish()
	in := &mlsapi.CreateConvoInput{CipherSuite: mlstest.Suite.String(),
		WelcomeMessage: mlstest.Welcome(t, alice.claim(bob)...)}
	in.InitialMembers = append(in.InitialMembers, bob.did())
	create := func(u *user) answer {
		in.GroupID = fmt.Sprintf("%x", newGroup(t))
		return u.post(mlsapi.NSIDCreateConvo, in)
	}
	create(carol).fails(http.StatusBadRequest, mlsapi.ErrInvalidWelcome)
	pgtest.Age(t, w.db, "key_packages", 29*time.Minute, "claim_expires_at")
	if done := w.sweepKeyPackages(); done["key_packages_orphaned"] != 0 {
		t.Fatalf("before its time: %+v", done)
	}
	pgtest.Age(t, w.db, "key_packages", 2*time.Minute, "claim_expires_at")
	for range 2 { // before the sweep and after it
		if out := carol.claimed(bob); len(out.KeyPackages) != 0 || len(out.Missing) != 1 {
			t.Fatalf("another caller gets %+v", out)
		}
		create(carol).fails(http.StatusBadRequest, mlsapi.ErrInvalidWelcome)
		w.sweepKeyPackages()
	}
	if n := w.count(`SELECT count FROM key_package_signals WHERE kind = 'orphaned' AND (did, device_id) = ($1, $2)`,
		bob.did(), bob.deviceID()); n != 1 {
		t.Fatalf("the owner gets %d events of expired claims", n)
	}
	create(alice).ok()
	create(alice).fails(http.StatusBadRequest, mlsapi.ErrInvalidWelcome)
	if s := bob.stats(); s.Consumed != 1 || *s.Orphaned != 0 {
		t.Fatalf("in the end: %+v", s)
	}
}

// A Welcome that names a KeyPackage which does not exist, has expired or belongs to another
// consumes no KeyPackage.
func TestAllOrNoneConsumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	soon := lexcodec.NewDatetime(time.Now().Add(time.Hour))
	short, refs := bob.batch(1)
	short.KeyPackages[0].Expires = &soon
	bob.statuses(short)
	pgtest.Age(t, w.db, "key_packages", time.Hour, "not_after")
	bob.publish()
	mine := alice.claim(bob)[0]
	bob.publish()
	theirs := carol.claim(bob)[0]
	for name, c := range map[string]struct {
		ref    mls.KeyPackageRef
		status int
		err    string
	}{
		"unknown":            {make([]byte, 32), http.StatusNotFound, mlsapi.ErrKeyPackageNotFound},
		"expired":            {refs[0], http.StatusBadRequest, mlsapi.ErrInvalidWelcome},
		"claimed by another": {theirs, http.StatusBadRequest, mlsapi.ErrInvalidWelcome},
	} {
		in := alice.creation(newGroup(t))
		in.InitialMembers = append(in.InitialMembers, bob.did())
		in.WelcomeMessage = mlstest.Welcome(t, mine, c.ref)
		alice.post(mlsapi.NSIDCreateConvo, in).fails(c.status, c.err)
		if n := w.count(`SELECT count(*) FROM key_packages WHERE state = 'consumed'`); n != 0 {
			t.Fatalf("%s: %d are consumed", name, n)
		}
	}
	in := alice.creation(newGroup(t))
	in.InitialMembers = append(in.InitialMembers, bob.did())
	in.WelcomeMessage = mlstest.Welcome(t, mine)
	alice.post(mlsapi.NSIDCreateConvo, in).ok()
	if n := w.count(`SELECT count(*) FROM key_packages WHERE state = 'consumed' AND ref = $1`, []byte(mine)); n != 1 {
		t.Fatal("the KeyPackage that the Welcome names is not consumed")
	}
}

// 16 callers on two nodes make 1,600 claims of the 200 KeyPackages of 20 people. Each KeyPackage
// goes to one caller. After that the last-resort ones are served.
func TestManyClaims(t *testing.T) {
	t.Parallel()
	const claims, perTarget, callers, targets = 1_600, 10, 16, 20
	w := newWorld(t)
	nodes := []*world{w, w.user().on(w.boot()).w}
	of, by := make([]*user, targets), make([]*user, callers)
	for i := range by {
		by[i] = w.user()
	}
	for i := range of {
		of[i] = w.user()
		of[i].meets(by...)
		of[i].stock(perTarget)
		if i%2 == 0 {
			of[i].stock(1, mlstest.LastResort)
		}
	}
	var mu sync.Mutex
	holders, again := map[string]int{}, 0
	var failed atomic.Bool
	claim := func(caller, n int, by *user) {
		target := of[(n+caller)%targets]
		node := nodes[n/targets%2]
		a := node.do(http.MethodGet, mlsapi.NSIDGetKeyPackages, query("dids", target.did().String()), nil,
			by.authorization(mlsapi.NSIDGetKeyPackages))
		if a.status != http.StatusOK {
			failed.Store(true)
			t.Errorf("claim %d of caller %d: %d %s", n, caller, a.status, a.body)
			return
		}
		out := read[mlsapi.GetKeyPackagesOutput](t, a.body)
		mu.Lock()
		defer mu.Unlock()
		for _, k := range out.KeyPackages {
			if *k.LastResort {
				again++
				continue
			}
			if before, twice := holders[*k.KeyPackageRef]; twice {
				failed.Store(true)
				t.Errorf("callers %d and %d got %s", before, caller, *k.KeyPackageRef)
			}
			holders[*k.KeyPackageRef] = caller
		}
	}
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for n := range claims / callers {
				if failed.Load() {
					return
				}
				claim(caller, n, by[caller])
			}
		})
	}
	wg.Wait()
	if len(holders) != perTarget*targets || again == 0 {
		t.Fatalf("%d of %d were handed out, and %d times a last-resort one", len(holders), perTarget*targets, again)
	}
	if n := w.count(`SELECT count(*) FROM key_packages WHERE state = 'claimed'`); n != len(holders) {
		t.Fatalf("%d are claimed, %d were handed out", n, len(holders))
	}
}
