package api_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
)

// claimed calls getKeyPackages for one person, without a key.
func (u *user) claimed(of *user) mlsapi.GetKeyPackagesOutput {
	u.w.t.Helper()
	return read[mlsapi.GetKeyPackagesOutput](u.w.t, u.get(mlsapi.NSIDGetKeyPackages, "dids", of.did().String()).ok())
}

// double-claim: a KeyPackage was handed to several callers (16 times, in one case). Many callers
// claim at once on two nodes. Each KeyPackage goes to one of them, and the last callers get none.
func TestDoubleClaim(t *testing.T) {
	t.Parallel()
	const published, callers = 12, 40
	w := newWorld(t)
	bob := w.user()
	for range published {
		bob.publish()
	}
	other := w.boot()
	by := make([]*user, callers)
	for i := range by {
		by[i] = w.user()
		if i%2 == 1 {
			by[i] = by[i].on(other)
		}
	}
	seen := map[string]int{}
	for i, a := range together(callers,
		func(i int) answer { return by[i].get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String()) }) {
		out := read[mlsapi.GetKeyPackagesOutput](t, a.ok())
		if len(out.KeyPackages)+len(out.Missing) != 1 {
			t.Fatalf("caller %d got %s", i, a.body)
		}
		for _, k := range out.KeyPackages {
			if before, twice := seen[*k.KeyPackageRef]; twice {
				t.Fatalf("callers %d and %d got one KeyPackage", before, i)
			}
			seen[*k.KeyPackageRef] = i
		}
	}
	for len(seen) < published { // a request that found all rows locked got none
		out := w.user().claimed(bob)
		if len(out.KeyPackages) != 1 {
			t.Fatalf("after %d of %d there is no KeyPackage left", len(seen), published)
		}
		if _, twice := seen[*out.KeyPackages[0].KeyPackageRef]; twice {
			t.Fatal("a KeyPackage was handed out again")
		}
		seen[*out.KeyPackages[0].KeyPackageRef] = -1
	}
	pgtest.Age(t, w.db, "key_packages", time.Hour, "claimed_at", "claim_expires_at")
	if out := w.user().claimed(bob); len(out.KeyPackages) != 0 || len(out.Missing) != 1 {
		t.Fatalf("once the claims have expired, another caller gets %+v", out)
	}
}

// expired-served: KeyPackages were handed out after their lifetime.
func TestExpiredServed(t *testing.T) {
	t.Parallel()
	for _, lastResort := range []bool{false, true} {
		w := newWorld(t)
		alice, bob := w.user(), w.user()
		soon := lexcodec.NewDatetime(time.Now().Add(time.Hour))
		var options []mlstest.Option
		if lastResort {
			options = append(options, mlstest.LastResort)
		}
		kp, _ := bob.KeyPackage(t, options...)
		bob.post(mlsapi.NSIDPublishKeyPackage,
			&mlsapi.PublishKeyPackageInput{KeyPackage: kp, CipherSuite: mlstest.Suite.String(), Expires: &soon}).ok()
		pgtest.Age(t, w.db, "key_packages", time.Hour, "not_after")
		if out := alice.claimed(bob); len(out.KeyPackages) != 0 || len(out.Missing) != 1 {
			t.Fatalf("an expired KeyPackage (last resort: %t) is served: %+v", lastResort, out)
		}
		bob.publish()
		if out := alice.claimed(bob); len(out.KeyPackages) != 1 || string(out.KeyPackages[0].KeyPackage) == string(kp) {
			t.Fatalf("beside an expired KeyPackage a good one is not served: %+v", out)
		}
	}
}

// locked-last-resort: SKIP LOCKED over a busy last-resort row answered "none".
func TestLockedLastResort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	ref := bob.publish(mlstest.LastResort)
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := tx.Exec(t.Context(), `SELECT FROM key_packages FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out := alice.claimed(bob)
		if len(out.KeyPackages) != 1 || *out.KeyPackages[0].KeyPackageRef != ref.String() || !*out.KeyPackages[0].LastResort {
			t.Fatalf("while the row is busy the answer is %+v", out)
		}
	}
}

// The answer has one KeyPackage of every device. One-time KeyPackages are served first, the
// last-resort one stays.
func TestClaimPerDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, phone, without := w.user(), w.user(), w.user()
	laptop := phone.device()
	oneTime, last, other := phone.publish(), phone.publish(mlstest.LastResort), laptop.publish()
	refs := func() map[string]string {
		out := read[mlsapi.GetKeyPackagesOutput](t, alice.get(mlsapi.NSIDGetKeyPackages,
			"dids", phone.did().String(), "dids", without.did().String(), "dids", phone.did().String()).ok())
		if len(out.Missing) != 1 || out.Missing[0] != without.did() {
			t.Fatalf("missing: %v", out.Missing)
		}
		got := map[string]string{}
		for _, k := range out.KeyPackages {
			got[*k.DeviceID] = *k.KeyPackageRef
		}
		if len(got) != len(out.KeyPackages) {
			t.Fatalf("a device is in the answer twice: %+v", out)
		}
		return got
	}
	if got := refs(); len(got) != 2 || got[phone.deviceID()] != oneTime.String() ||
		got[laptop.deviceID()] != other.String() {
		t.Fatalf("the first claim got %v", got)
	}
	if got := refs(); len(got) != 1 || got[phone.deviceID()] != last.String() {
		t.Fatalf("the second claim got %v", got)
	}
}

// KeyPackages that are refused, and why.
func TestPublishRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	good, _ := alice.KeyPackage(t)
	broken := append([]byte(nil), good...)
	broken[len(broken)-1] ^= 1
	foreign, _ := bob.KeyPackage(t)
	init := make([]byte, 32)
	init[0] = 9
	first, _ := alice.KeyPackage(t, mlstest.InitKey(init))
	second, _ := alice.KeyPackage(t, mlstest.InitKey(init))
	now := time.Now()
	old, _ := alice.KeyPackage(t, mlstest.Lifetime(now.Add(-2*time.Hour), now.Add(-time.Hour)))
	long, _ := alice.KeyPackage(t, mlstest.Lifetime(now, now.Add(400*day)))
	publish := func(kp []byte, suite string, expires time.Duration) answer {
		in := &mlsapi.PublishKeyPackageInput{KeyPackage: kp, CipherSuite: suite}
		if expires != 0 {
			at := lexcodec.NewDatetime(now.Add(expires))
			in.Expires = &at
		}
		return alice.post(mlsapi.NSIDPublishKeyPackage, in)
	}
	suite := mlstest.Suite.String()
	publish(first, suite, 0).ok()
	for name, a := range map[string]answer{
		"broken signature":      publish(broken, suite, 0),
		"another person's":      publish(foreign, suite, 0),
		"init_key used before":  publish(second, suite, 0),
		"outside its lifetime":  publish(old, suite, 0),
		"too long a lifetime":   publish(long, suite, 0),
		"another suite than it": publish(good, "MLS_128_DHKEMP256_AES128GCM_SHA256_P256", 0),
		"noise":                 publish([]byte("noise"), suite, 0),
		"expired by request":    publish(good, suite, -time.Minute),
	} {
		t.Run(name, func(t *testing.T) { a.fails(http.StatusBadRequest, mlsapi.ErrInvalidKeyPackage) })
	}
	publish(good, suite, 91*day).fails(http.StatusBadRequest, mlsapi.ErrExpirationTooFar)
	for _, suite := range []string{"MLS_256_DHKEMX25519_AES256GCM_SHA512_Ed25519", "none"} {
		publish(good, suite, 0).fails(http.StatusBadRequest, mlsapi.ErrInvalidCipherSuite)
	}
	w.exec(`
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at)
		SELECT did, sha256(n::text::bytea), device_id, cipher_suite, body, not_after, last_resort, created_at
		FROM key_packages, generate_series(1, 499) n`)
	publish(good, suite, 0).fails(http.StatusBadRequest, mlsapi.ErrTooManyKeyPackages)
	w.exec(`DELETE FROM key_packages WHERE ref IN (SELECT sha256(n::text::bytea) FROM generate_series(1, 499) n)`)
	publish(good, suite, 89*day).ok()
}
