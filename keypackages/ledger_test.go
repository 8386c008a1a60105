package keypackages_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
	"mlsd/mls"
)

const day = 24 * time.Hour

// bobs is a claim of bob's KeyPackages.
func bobs(caller syntax.DID) keypackages.ClaimRequest {
	return keypackages.ClaimRequest{Caller: caller, DIDs: []syntax.DID{bob}}
}

// fill publishes n KeyPackages of a device at once.
func fill(t *testing.T, db *pgxpool.Pool, d *mlstest.Device, n int, options ...mlstest.Option) []mls.KeyPackageRef {
	t.Helper()
	batch, refs := make([]keypackages.Publication, n), make([]mls.KeyPackageRef, n)
	for i := range n {
		var body []byte
		body, refs[i] = d.KeyPackage(t, options...)
		batch[i] = publication(body)
	}
	for _, p := range publishAll(t, db, batch) {
		if p.Err != nil || p.Duplicate {
			t.Fatalf("%+v", p)
		}
	}
	return refs
}

func publishAll(t *testing.T, db *pgxpool.Pool, batch []keypackages.Publication) []keypackages.Published {
	t.Helper()
	batch = slices.Clone(batch) // it was not verified
	out, err := tryPublishAll(t, db, batch)
	if unverified := (*keypackages.UnverifiedError)(nil); errors.As(err, &unverified) {
		unverified.Verify()
		out, err = tryPublishAll(t, db, batch)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryPublishAll(t *testing.T, db *pgxpool.Pool, batch []keypackages.Publication) ([]keypackages.Published, error) {
	t.Helper()
	return inTx(t, db, func(tx pgx.Tx) ([]keypackages.Published, error) {
		return keypackages.PublishAll(t.Context(), tx, batch)
	})
}

// swept are the rows that sweeps have ended.
type swept = map[string]int64

func sweep(t *testing.T, db *pgxpool.Pool) swept {
	t.Helper()
	return pgtest.Sweep(t, keypackages.Sweeps(db)...)
}

func count(t *testing.T, db *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// signals returns the counts of bob's signals by kind, over all devices and suites.
func signals(t *testing.T, db *pgxpool.Pool) map[string]int {
	t.Helper()
	rows, err := db.Query(context.Background(), `SELECT kind, count FROM key_package_signals WHERE did = $1`, bob)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	var kind string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&kind, &n}, func() error {
		got[kind] += n
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestPublishAll: each KeyPackage of a batch is judged on its own, also against those before it.
func TestPublishAll(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	key := make([]byte, 32)
	key[0] = 9
	good, goodRef := d.KeyPackage(t)
	first, firstRef := d.KeyPackage(t, mlstest.InitKey(key))
	second, _ := d.KeyPackage(t, mlstest.InitKey(key))
	foreign, _ := mlstest.NewDevice(t, alice.String()).KeyPackage(t)
	far := time.Now().Add(91 * day)
	batch := []keypackages.Publication{
		publication(good), publication([]byte("garbage")), publication(good), publication(first), publication(second),
		publication(foreign), {Owner: bob, Body: good, CipherSuite: mlstest.Suite, Expires: &far},
	}
	want := []string{"published " + goodRef.String(), "invalid", "duplicate " + goodRef.String(),
		"published " + firstRef.String(),
		"invalid", "invalid", "too far"}
	for _, again := range []bool{false, true} {
		var got []string
		for _, p := range publishAll(t, db, batch) {
			var invalid *keypackages.InvalidError
			switch {
			case errors.As(p.Err, &invalid):
				got = append(got, "invalid")
			case errors.Is(p.Err, keypackages.ErrExpirationTooFar):
				got = append(got, "too far")
			case p.Err != nil:
				got = append(got, p.Err.Error())
			case p.Duplicate:
				got = append(got, "duplicate "+p.Ref.String())
			default:
				got = append(got, "published "+p.Ref.String())
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("again: %t (-want +got)\n%s", again, diff)
		}
		for i := range want {
			want[i] = strings.Replace(want[i], "published", "duplicate", 1)
		}
	}
	if n := count(t, db, `SELECT count(*) FROM key_packages`); n != 2 {
		t.Fatalf("%d are stored", n)
	}
}

// TestBatchIsVerifiedOutside: the new KeyPackages of a batch are verified outside the transaction, and
// nothing else is.
func TestBatchIsVerifiedOutside(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	var bodies [][]byte
	for range 3 {
		body, _ := d.KeyPackage(t)
		bodies = append(bodies, body)
	}
	foreign, _ := mlstest.NewDevice(t, alice.String()).KeyPackage(t)
	now := time.Now()
	old, _ := d.KeyPackage(t, mlstest.Lifetime(now.Add(-2*time.Hour), now.Add(-time.Hour)))
	unverified := func(want int, bodies ...[]byte) {
		t.Helper()
		batch := make([]keypackages.Publication, len(bodies))
		for i, body := range bodies {
			batch[i] = publication(body)
		}
		n := 0
		_, err := tryPublishAll(t, db, batch)
		if unverified := (*keypackages.UnverifiedError)(nil); errors.As(err, &unverified) {
			n = unverified.Bytes
			unverified.Verify()
			_, err = tryPublishAll(t, db, batch)
		}
		if err != nil || n != want {
			t.Fatalf("%d bytes were verified outside, want %d: %v", n, want, err)
		}
	}
	unverified(0, bodies[0]) // one is verified inside
	unverified(len(bodies[1]), bodies[0], bodies[1], foreign, old, []byte("garbage"))
	unverified(0, bodies[1], bodies[0], foreign, old)
	unverified(2*len(bodies[2]), bodies[2], bodies[2])
	if n := count(t, db, `SELECT count(*) FROM key_packages`); n != 3 {
		t.Fatalf("%d are stored", n)
	}
}

// TestBounds: a batch is published up to the bounds. Expired KeyPackages count, claimed ones do
// not.
func TestBounds(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	fill(t, db, d, 1)
	pad := func(state string, from, to int) {
		t.Helper()
		_, err := db.Exec(t.Context(), `
			INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at, state)
			SELECT did, int4send(n), device_id, cipher_suite, body, not_after, last_resort, created_at, $1
			FROM (SELECT * FROM key_packages LIMIT 1) one, generate_series($2::int, $3) AS n`, state, from, to)
		if err != nil {
			t.Fatal(err)
		}
	}
	batch := make([]keypackages.Publication, 5)
	for i := range batch {
		body, _ := d.KeyPackage(t)
		batch[i] = publication(body)
	}
	taken := func() (n int) {
		t.Helper()
		for _, p := range publishAll(t, db, batch) {
			switch {
			case p.Err == nil && !p.Duplicate:
				n++
			case p.Err != nil && !errors.Is(p.Err, keypackages.ErrTooMany):
				t.Fatal(p.Err)
			}
		}
		return n
	}
	pad("available", 1, keypackages.MaxAvailable-4)
	if n := taken(); n != 3 {
		t.Fatalf("%d of 5 were published where 3 more can be available", n)
	}
	if _, err := db.Exec(t.Context(), `DELETE FROM key_packages WHERE octet_length(ref) = 4`); err != nil {
		t.Fatal(err)
	}
	pad("expired", 1, keypackages.MaxUnclaimed-5)
	pad("orphaned", 10_000, 10_000+keypackages.MaxUnclaimed)
	if n := taken(); n != 1 {
		t.Fatalf("%d of 2 were published where there can be one more", n)
	}
}

// TestBudget: a caller gets its budget of one-time KeyPackages of a device and then the last-resort
// one, even if many claims run at once. Other callers are not limited.
func TestBudget(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t, pgtest.MaxConns(16))
	phone, laptop := mlstest.NewDevice(t, bob.String()), mlstest.NewDevice(t, bob.String())
	fill(t, db, phone, 2*keypackages.Budget)
	convo(t, db, bob, alice, carol) // outsiders have less
	const asked = keypackages.Budget + 20
	var mu sync.Mutex
	var served, limited, missing int
	var wg sync.WaitGroup
	for range asked {
		wg.Go(func() {
			got, err := take(t, db, bobs(alice))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			served, limited, missing = served+len(got.Claimed), limited+len(got.Limited), missing+len(got.Missing)
		})
	}
	wg.Wait()
	if served != keypackages.Budget || limited != asked-served || missing != asked-served {
		t.Fatalf("of %d claims %d were served, %d limited, %d answered with nothing", asked, served, limited, missing)
	}
	last, other := fill(t, db, phone, 1, mlstest.LastResort)[0], fill(t, db, laptop, 1)[0]
	got, err := take(t, db, bobs(alice))
	if err != nil {
		t.Fatal(err)
	}
	refs := map[string]bool{}
	for _, k := range got.Claimed {
		refs[k.Ref.String()] = k.LastResort
	}
	if diff := cmp.Diff(map[string]bool{last.String(): true, other.String(): false}, refs); diff != "" {
		t.Errorf("beyond the budget of one device (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]syntax.DID{bob}, got.Limited); diff != "" || got.Missing != nil {
		t.Errorf("limited (-want +got)\n%s, missing %v", diff, got.Missing)
	}
	if got, err := take(t, db, bobs(carol)); err != nil || len(got.Limited) != 0 || len(got.Claimed) != 1 ||
		got.Claimed[0].LastResort {
		t.Errorf("another caller: %+v, %v", got, err)
	}
	sweep(t, db) // orphaned KeyPackages count too
	if got, err := take(t, db, bobs(alice)); err != nil || len(got.Limited) != 1 {
		t.Errorf("once the claims are orphaned: %+v, %v", got, err)
	}
	pgtest.Age(t, db, "key_packages", day, "claimed_at")
	if got, err := take(t, db, bobs(alice)); err != nil || len(got.Limited) != 0 || len(got.Claimed) != 1 ||
		got.Claimed[0].LastResort {
		t.Errorf("a day later: %+v, %v", got, err)
	}
}

// TestLowSignal: the signal is raised once when claims leave fewer than the threshold. It ends when
// enough are published, and can be raised again.
func TestLowSignal(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	fill(t, db, d, keypackages.Threshold+1)
	fill(t, db, mlstest.NewDevice(t, bob.String()), 2*keypackages.Threshold) // which is not low
	claim := func(caller syntax.DID) {
		t.Helper()
		if got, err := take(t, db, bobs(caller)); err != nil || len(got.Claimed) != 2 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	expect := func(when string, want map[string]int) {
		t.Helper()
		if diff := cmp.Diff(want, signals(t, db)); diff != "" {
			t.Fatalf("%s (-want +got)\n%s", when, diff)
		}
	}
	claim(alice)
	expect("at the threshold", map[string]int{})
	claim(carol)
	crossed := map[string]int{"low": keypackages.Threshold - 1}
	expect("below the threshold", crossed)
	claim(alice)
	expect("further below", crossed)
	fill(t, db, d, 1)
	expect("not enough published", crossed)
	fill(t, db, d, 2)
	expect("enough published", map[string]int{})
	claim(alice)
	claim(alice)
	expect("below the threshold again", crossed)
	pgtest.Age(t, db, "key_package_signals", 31*day)
	sweep(t, db)
	expect("a month later", map[string]int{})
	claim(carol)
	expect("still below the threshold", map[string]int{"low": keypackages.Threshold - 2})
}

// TestLastResortSignal: the signal is raised when the last-resort KeyPackage is served, and ends
// when any KeyPackage is published.
func TestLastResortSignal(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	fill(t, db, d, 1, mlstest.LastResort)
	for range 2 {
		if _, err := take(t, db, bobs(alice)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]int{"last_resort": 0}, signals(t, db)); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
	}
	fill(t, db, d, 1)
	if got := signals(t, db); len(got) != 0 {
		t.Fatalf("after a publication: %v", got)
	}
	if _, err := take(t, db, bobs(alice)); err != nil { // the one-time one
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"low": 0}, signals(t, db)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

// TestSignalsAtOnce: claims and publications of the same stocks that run at once do not deadlock,
// and the signals match the stocks afterwards.
func TestSignalsAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t, pgtest.MaxConns(16))
	owners := make([]syntax.DID, 6)
	devices := make([]*mlstest.Device, len(owners))
	stock := func(i, n int) {
		for range n {
			body, _ := devices[i].KeyPackage(t)
			_, err := publish(t, db, keypackages.Publication{Owner: owners[i], Body: body, CipherSuite: mlstest.Suite})
			if err != nil {
				t.Error(err)
			}
		}
	}
	for i := range owners {
		owners[i] = syntax.DID(fmt.Sprintf("did:plc:owner%d", i))
		devices[i] = mlstest.NewDevice(t, owners[i].String())
		stock(i, keypackages.Threshold+2)
	}
	var wg sync.WaitGroup
	for i := range owners {
		wg.Go(func() { stock(i, 12) })
		wg.Go(func() {
			caller := syntax.DID(fmt.Sprintf("did:plc:caller%d", i))
			asked := append(owners[i:len(owners):len(owners)], owners[:i]...)
			for range 6 {
				if _, err := take(t, db, keypackages.ClaimRequest{Caller: caller, DIDs: asked}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for range 2 * len(owners) { // until each is low
		if _, err := take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: owners}); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, db, `SELECT count(*) FROM key_package_signals WHERE kind = 'low'`); n != len(owners) {
		t.Fatalf("%d of %d stocks are signalled as low", n, len(owners))
	}
}

// TestOrphaned: a claim that lapses is signalled to the owner. The KeyPackage is not served again,
// and the caller that claimed it can still use it.
func TestOrphaned(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	refs := fill(t, db, mlstest.NewDevice(t, bob.String()), 3)
	for range 2 {
		if _, err := take(t, db, bobs(alice)); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(swept{}, sweep(t, db)); diff != "" {
		t.Fatalf("before its time (-want +got)\n%s", diff)
	}
	for i := range 2 { // one lapses after the other
		if _, err := db.Exec(t.Context(), `UPDATE key_packages SET claim_expires_at = now() WHERE ref = $1`,
			[]byte(refs[i])); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(swept{"key_packages_orphaned": 1}, sweep(t, db)); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
		if got := signals(t, db); got["orphaned"] != i+1 {
			t.Fatalf("signals: %v", got)
		}
	}
	got, err := take(t, db, bobs(carol))
	if err != nil || len(got.Claimed) != 1 || got.Claimed[0].Ref.String() != refs[2].String() {
		t.Fatalf("another claim got %+v, %v", got, err)
	}
	consume := func(caller syntax.DID) error {
		_, err := inTx(t, db, func(tx pgx.Tx) ([]keypackages.Recipient, error) {
			return here(keypackages.Consume(t.Context(), tx, caller, []syntax.DID{bob}, mlstest.Suite, refs[:2], nil))
		})
		return err
	}
	var unusable *keypackages.UnusableError
	if err := consume(carol); !errors.As(err, &unusable) || !strings.Contains(err.Error(), "claimed by another caller") {
		t.Fatalf("used by another: %v", err)
	}
	if err := consume(alice); err != nil {
		t.Fatalf("used late by its claimer: %v", err)
	}
	if err := consume(alice); !errors.As(err, &unusable) || !strings.Contains(err.Error(), "consumed") {
		t.Fatalf("used again: %v", err)
	}
}

// TestExpired: an unclaimed KeyPackage cannot be used after its lifetime, before and after the
// sweep has run. A claimed one can be used by its caller.
func TestExpired(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	refs := fill(t, db, d, 2)
	last := fill(t, db, d, 1, mlstest.LastResort)[0]
	if _, err := take(t, db, bobs(alice)); err != nil { // refs[0]
		t.Fatal(err)
	}
	pgtest.Age(t, db, "key_packages", 31*day, "not_after")
	consume := func(ref mls.KeyPackageRef) error {
		_, err := inTx(t, db, func(tx pgx.Tx) ([]keypackages.Recipient, error) {
			return here(keypackages.Consume(t.Context(), tx, alice, []syntax.DID{bob}, mlstest.Suite,
				[]mls.KeyPackageRef{ref}, nil))
		})
		return err
	}
	expired := func(ref mls.KeyPackageRef) {
		t.Helper()
		var unusable *keypackages.UnusableError
		if err := consume(ref); !errors.As(err, &unusable) || !strings.Contains(err.Error(), "expired") {
			t.Fatalf("an expired one: %v", err)
		}
	}
	expired(refs[1])
	expired(last)
	if diff := cmp.Diff(swept{"key_packages_expired": 2}, sweep(t, db)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	expired(refs[1])
	expired(last)
	if err := consume(refs[0]); err != nil {
		t.Fatalf("a claimed one: %v", err)
	}
}

// TestEndedAreDeleted: KeyPackages are deleted a month after they ended, not before. Their
// init_keys stay used.
func TestEndedAreDeleted(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	body, consumed := d.KeyPackage(t)
	if _, err := publish(t, db, publication(body)); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	fill(t, db, d, 2, mlstest.Lifetime(now.Add(-time.Hour), now.Add(80*day)))
	short := mlstest.Lifetime(now.Add(-time.Hour), now.Add(keypackages.ServedLife+time.Hour))
	fill(t, db, d, 1, short)
	fill(t, db, d, 1, short, mlstest.LastResort)
	for range 2 {
		if _, err := take(t, db, bobs(alice)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := inTx(t, db, func(tx pgx.Tx) ([]keypackages.Recipient, error) {
		return here(keypackages.Consume(t.Context(), tx, alice, []syntax.DID{bob}, mlstest.Suite,
			[]mls.KeyPackageRef{consumed}, nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		pass time.Duration
		want swept
	}{
		{0, swept{}},
		// one consumed, one orphaned, two expired; one is left
		{2 * time.Hour, swept{"key_packages_expired": 2, "key_packages_orphaned": 1}},
		{29*day + 21*time.Hour, swept{}},
		{time.Hour, swept{"key_packages_deleted": 1}}, // the consumed one ended first
		{2 * time.Hour, swept{"key_packages_deleted": 3}},
	} {
		pgtest.Age(t, db, "key_packages", step.pass)
		if diff := cmp.Diff(step.want, sweep(t, db)); diff != "" {
			t.Fatalf("%s later (-want +got)\n%s", step.pass, diff)
		}
	}
	if rows, keys := count(t, db, `SELECT count(*) FROM key_packages`),
		count(t, db, `SELECT count(*) FROM key_package_init_keys`); rows != 1 || keys != 5 {
		t.Fatalf("%d KeyPackages and %d init_keys are left", rows, keys)
	}
	if got := publishAll(t, db, []keypackages.Publication{publication(body)}); !got[0].Duplicate {
		t.Fatalf("publishing a deleted one again: %+v", got[0])
	}
}

// TestSweepsAtOnce: several nodes share the work, and no work is done twice.
func TestSweepsAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	fill(t, db, d, 1)
	if _, err := take(t, db, bobs(alice)); err != nil {
		t.Fatal(err)
	}
	_, err := db.Exec(t.Context(), `
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at, state,
			claimed_by,
			claimed_at, claim_expires_at)
		SELECT did, int4send(n), device_id || n % 3, cipher_suite, body, not_after, last_resort, created_at, state,
			claimed_by,
			claimed_at, now() - interval '1 minute'
		FROM key_packages, generate_series(1, 1700) AS n`)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var total int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			done := sweep(t, db)
			mu.Lock()
			defer mu.Unlock()
			total += done["key_packages_orphaned"]
		})
	}
	wg.Wait()
	if signalled := signals(t, db)["orphaned"]; total+sweep(t, db)["key_packages_orphaned"] != 1700 || signalled != 1700 {
		t.Fatalf("%d claims were ended and %d signalled", total, signalled)
	}
}

func stats(t *testing.T, db *pgxpool.Pool, f keypackages.Filter) keypackages.Stats {
	t.Helper()
	got, err := keypackages.Count(t.Context(), db, bob, f)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestCount: KeyPackages are counted by state, in all and for each device, before and after the
// sweep.
func TestCount(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	if got := stats(t, db, keypackages.Filter{}); !got.NeedsReplenish || got.DepletesAt != nil || got.Devices != nil {
		t.Fatalf("of nothing: %+v", got)
	}
	phone, laptop, spare := mlstest.NewDevice(t, bob.String()), mlstest.NewDevice(t, bob.String()),
		mlstest.NewDevice(t, bob.String())
	now := time.Now()
	fill(t, db, spare, 1, mlstest.LastResort) // it has no one-time KeyPackages, and needs none
	fill(t, db, laptop, 1, mlstest.Lifetime(now.Add(-time.Hour), now.Add(keypackages.ServedLife+time.Hour)))
	refs := fill(t, db, phone, 4)
	pgtest.Age(t, db, "key_packages", 2*time.Hour, "not_after") // the laptop's
	for range 3 {
		if _, err := take(t, db, bobs(alice)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := inTx(t, db, func(tx pgx.Tx) ([]keypackages.Recipient, error) {
		return here(keypackages.Consume(t.Context(), tx, alice, []syntax.DID{bob}, mlstest.Suite, refs[:1], nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `UPDATE key_packages SET claim_expires_at = now() WHERE ref = $1`,
		[]byte(refs[1])); err != nil {
		t.Fatal(err)
	}
	for _, wasSwept := range []bool{false, true} {
		got := stats(t, db, keypackages.Filter{})
		want := keypackages.Counts{Available: 1, LastResort: 1, Claimed: 1, Consumed: 1, Orphaned: 1, Expired: 1}
		if diff := cmp.Diff(want, got.Counts); diff != "" {
			t.Fatalf("wasSwept: %t (-want +got)\n%s", wasSwept, diff)
		}
		if len(got.Suites) != 1 || got.Suites[0].Counts != want || got.Suites[0].CipherSuite != mlstest.Suite {
			t.Fatalf("by suite: %+v", got.Suites)
		}
		perDevice := []keypackages.Counts{{Available: 1, Claimed: 1, Consumed: 1, Orphaned: 1}, {Expired: 1}, {LastResort: 1}}
		for i, d := range got.Devices { // the last to publish first
			if d.Counts != perDevice[i] || d.NeedsReplenish != (i < 2) || (d.DepletesAt != nil) != (i == 0) {
				t.Fatalf("device %d: %+v", i, d)
			}
		}
		if len(got.Devices) != 3 || !got.NeedsReplenish {
			t.Fatalf("%+v", got)
		}
		one := stats(t, db, keypackages.Filter{DeviceID: got.Devices[2].DeviceID, CipherSuite: mlstest.Suite})
		if one.Counts != perDevice[2] || one.NeedsReplenish || len(one.Devices) != 1 {
			t.Fatalf("of the spare: %+v", one)
		}
		if none := stats(t, db, keypackages.Filter{CipherSuite: 3}); none.Counts != (keypackages.Counts{}) ||
			!none.NeedsReplenish {
			t.Fatalf("of another suite: %+v", none)
		}
		if diff := cmp.Diff(map[bool]swept{false: {"key_packages_expired": 1, "key_packages_orphaned": 1},
			true: {}}[wasSwept], sweep(t, db)); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
	}
}

// TestForecast: the forecast uses the rate of the last week, or since the device's first
// publication if that is more recent.
func TestForecast(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	fill(t, db, d, 30)
	convo(t, db, bob, alice) // outsiders have a smaller budget
	forecast := func(claims int, want time.Duration) {
		t.Helper()
		for range claims {
			if got, err := take(t, db, bobs(alice)); err != nil || len(got.Limited) > 0 {
				t.Fatalf("%+v, %v", got, err)
			}
		}
		got := stats(t, db, keypackages.Filter{})
		if got.DepletesAt == nil || !got.DepletesAt.Equal(*got.Devices[0].DepletesAt) {
			t.Fatalf("%+v", got)
		}
		var left time.Duration
		if err := db.QueryRow(t.Context(), `SELECT $1::timestamptz - clock_timestamp()`,
			got.DepletesAt).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if off := left - want; off < -want/100-time.Minute || off > want/100+time.Minute {
			t.Fatalf("after %d more claims: in %s, want %s", claims, left, want)
		}
	}
	if got := stats(t, db, keypackages.Filter{}); got.DepletesAt != nil || got.NeedsReplenish {
		t.Fatalf("without a claim: %+v", got)
	}
	forecast(2, 14*time.Hour) // a new device: 28 are left, and two went within the hour
	pgtest.Age(t, db, "key_packages", 3*day, "created_at", "claimed_at")
	forecast(1, 27*day) // three in three days
	pgtest.Age(t, db, "key_packages", 6*day, "created_at", "claimed_at")
	forecast(1, 13*7*day) // one of the three, and this one, in a week; 26 are left
	forecast(26, 0)
	if got := stats(t, db, keypackages.Filter{}); !got.NeedsReplenish || got.Available != 0 {
		t.Fatalf("in the end: %+v", got)
	}
}

// TestManyDeviceStats: the list of devices is bounded, and the sums count all.
func TestManyDeviceStats(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	fill(t, db, mlstest.NewDevice(t, bob.String()), 1)
	_, err := db.Exec(t.Context(), `
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at)
		SELECT did, int4send(n), 'device' || n, cipher_suite, body, not_after, last_resort, created_at + n * interval
			'1 second'
		FROM key_packages, generate_series(1, 149) AS n`)
	if err != nil {
		t.Fatal(err)
	}
	got := stats(t, db, keypackages.Filter{})
	if got.Available != 150 || len(got.Devices) != 100 || got.Devices[0].DeviceID != "device149" ||
		got.Devices[99].DeviceID != "device50" {
		t.Fatalf("%d available, %d devices from %s", got.Available, len(got.Devices), got.Devices[0].DeviceID)
	}
}

// TestOthersCostNothing: a claim, a publication, a consumption and a count read no more rows when
// others have published more, even while the planner has no statistics of the grown table.
func TestOthersCostNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	refs := fill(t, db, d, keypackages.Threshold+5)
	fill(t, db, d, 1, mlstest.LastResort)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	touched := func() (rows int64) {
		t.Helper()
		err := tx.QueryRow(t.Context(), `
			SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables
			WHERE relname IN ('key_packages', 'members', 'welcomes')`).
			Scan(&rows)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	before := touched()
	cheap := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		now := touched()
		if rows := now - before; rows > 300 {
			t.Fatalf("%s touches %d rows", what, rows)
		}
		before = now
	}
	grow := func() {
		t.Helper()
		_, err := tx.Exec(t.Context(), `
			INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at)
			SELECT 'did:plc:other' || n, int4send(n), device_id, cipher_suite, body, not_after, n % 2 = 0, created_at
			FROM (SELECT * FROM key_packages WHERE NOT last_resort LIMIT 1) one, generate_series(1, 10000) AS n`)
		if err == nil { // H8: whether the caller is an outsider costs the convos of the owner, not the caller's
			_, err = tx.Exec(t.Context(), `
				INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
				SELECT gen_random_uuid(), CASE WHEN n <= 5 THEN $1 ELSE $2 END, 'member', now(), 0 FROM generate_series(1, 10000) AS
					n`, bob, alice)
		}
		if err != nil {
			t.Fatal(err)
		}
		before = touched()
	}
	for round := range 2 {
		if round == 1 {
			grow()
		}
		for i := range 6 { // until a plan is kept
			body, _ := d.KeyPackage(t)
			_, err := keypackages.Publish(t.Context(), tx, publication(body))
			cheap("a publication", err)
			_, err = keypackages.Claim(t.Context(), tx, bobs(alice))
			cheap("a claim", err)
			_, _, err = keypackages.Consume(t.Context(), tx, alice, []syntax.DID{bob}, mlstest.Suite,
				refs[6*round+i:6*round+i+1], nil)
			cheap("a use", err)
			_, err = keypackages.Count(t.Context(), tx, bob, keypackages.Filter{})
			cheap("a count", err)
		}
	}
}
