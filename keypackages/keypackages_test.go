package keypackages_test

import (
	"context"
	"errors"
	"fmt"
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

const (
	alice syntax.DID = "did:plc:alice"
	bob   syntax.DID = "did:plc:bob"
	carol syntax.DID = "did:plc:carol"
)

// inTx runs f in a transaction of its own.
func inTx[T any](t *testing.T, db *pgxpool.Pool, f func(tx pgx.Tx) (T, error)) (T, error) {
	t.Helper()
	var out T
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		out, err = f(tx)
		return err
	})
	return out, err
}

func publish(t *testing.T, db *pgxpool.Pool, p keypackages.Publication) (mls.KeyPackageRef, error) {
	t.Helper()
	return inTx(t, db, func(tx pgx.Tx) (mls.KeyPackageRef, error) { return keypackages.Publish(t.Context(), tx, p) })
}

func publication(body []byte) keypackages.Publication {
	return keypackages.Publication{Owner: bob, Body: body, CipherSuite: mlstest.Suite}
}

// stock publishes n KeyPackages of a device.
func stock(t *testing.T, db *pgxpool.Pool, d *mlstest.Device, n int, options ...mlstest.Option) []mls.KeyPackageRef {
	t.Helper()
	refs := make([]mls.KeyPackageRef, n)
	for i := range refs {
		body, ref := d.KeyPackage(t, options...)
		if _, err := publish(t, db, publication(body)); err != nil {
			t.Fatal(err)
		}
		refs[i] = ref
	}
	return refs
}

func take(t *testing.T, db *pgxpool.Pool, c keypackages.ClaimRequest) (keypackages.ClaimResult, error) {
	t.Helper()
	return inTx(t, db, func(tx pgx.Tx) (keypackages.ClaimResult, error) { return keypackages.Claim(t.Context(), tx, c) })
}

func TestPublishRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	now := time.Now()
	good, _ := d.KeyPackage(t)
	body := func(options ...mlstest.Option) []byte {
		b, _ := d.KeyPackage(t, options...)
		return b
	}
	broken := append([]byte(nil), good...)
	broken[len(broken)-1] ^= 1
	far, past := now.Add(91*24*time.Hour), now.Add(-time.Minute)
	cases := map[string]struct {
		p    keypackages.Publication
		want string
	}{
		"garbage":               {publication([]byte("garbage")), "version"},
		"trailing byte":         {publication(append(body(), 0)), "malformed"},
		"another's credential":  {publication(body(mlstest.Identity(alice.String()))), "identity"},
		"another's with device": {publication(body(mlstest.Identity(bob.String() + "x#phone"))), "identity"},
		"a certificate":         {publication(body(mlstest.X509)), "of type x509; only a basic credential"}, // T16
		"expired": {publication(body(mlstest.Lifetime(now.Add(-2*time.Hour), now.Add(-time.Hour)))),
			"not_after"},
		"about to expire": {
			publication(body(mlstest.Lifetime(now.Add(-time.Hour), now.Add(keypackages.ServedLife-time.Minute)))),
			"24h30m0s after the server's time"}, // T14
		"not yet valid": {publication(body(mlstest.Lifetime(now.Add(time.Hour), now.Add(2*time.Hour)))),
			"not_before"},
		"too long a lifetime": {publication(body(mlstest.Lifetime(now.Add(-time.Hour), now.Add(100*24*time.Hour)))),
			"lifetime"},
		"broken signature": {publication(broken), "signature"},
		"another suite":    {keypackages.Publication{Owner: bob, Body: body(), CipherSuite: 3}, "cipherSuite"},
		"expires in the past": {keypackages.Publication{Owner: bob, Body: body(), CipherSuite: mlstest.Suite,
			Expires: &past}, "expires"},
		"expires too far ahead": {keypackages.Publication{Owner: bob, Body: body(), CipherSuite: mlstest.Suite,
			Expires: &far}, "90 days"},
	}
	for name, c := range cases {
		if _, err := publish(t, db, c.p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want something about %q", name, err, c.want)
		}
	}
	for _, fine := range [][]byte{good, body(mlstest.Identity(bob.String() + "#phone"))} {
		if _, err := publish(t, db, publication(fine)); err != nil {
			t.Errorf("a good KeyPackage: %v", err)
		}
	}
}

// TestPublishAgain: publishing the same KeyPackage again changes nothing, in any state.
// Another KeyPackage with its init_key is refused.
func TestPublishAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	key := make([]byte, 32)
	key[0] = 9
	body, ref := d.KeyPackage(t, mlstest.InitKey(key))
	for range 2 {
		if got, err := publish(t, db, publication(body)); err != nil || got.String() != ref.String() {
			t.Fatalf("%s, %v", got, err)
		}
	}
	other, _ := d.KeyPackage(t, mlstest.InitKey(key))
	var invalid *keypackages.InvalidError
	if _, err := publish(t, db, publication(other)); !errors.As(err, &invalid) ||
		!strings.Contains(err.Error(), "init_key") {
		t.Fatalf("a used init_key: %v", err)
	}
	first, err := take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{bob}})
	if err != nil || len(first.Claimed) != 1 {
		t.Fatalf("%+v, %v", first, err)
	}
	if _, err := publish(t, db, publication(body)); err != nil {
		t.Fatal(err)
	}
	if again, err := take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{bob}}); err != nil ||
		len(again.Claimed) != 0 {
		t.Fatalf("publishing it again made it available again: %+v, %v", again, err)
	}
	if _, err := db.Exec(t.Context(), `DELETE FROM key_packages`); err != nil {
		t.Fatal(err)
	}
	if _, err := publish(t, db, publication(other)); err == nil {
		t.Fatal("the tombstone went with the KeyPackage")
	}
}

func TestTooMany(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	stock(t, db, d, 1)
	_, err := db.Exec(t.Context(), `
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at)
		SELECT did, int4send(n), device_id, cipher_suite, body, not_after, last_resort, created_at
		FROM key_packages, generate_series(2, $1) AS n`, keypackages.MaxAvailable)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := d.KeyPackage(t)
	if _, err := publish(t, db, publication(body)); !errors.Is(err, keypackages.ErrTooMany) {
		t.Fatalf("got %v", err)
	}
	if _, err := take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{bob}}); err != nil {
		t.Fatal(err)
	}
	if _, err := publish(t, db, publication(body)); err != nil {
		t.Fatalf("after a claim another one can be published: %v", err)
	}
}

// TestOneForEachDevice: a claim gets one KeyPackage of each device, in the order of the DIDs asked
// for.
func TestOneForEachDevice(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	phone, laptop := mlstest.NewDevice(t, bob.String()), mlstest.NewDevice(t, bob.String())
	first := stock(t, db, phone, 3)[0]
	stock(t, db, laptop, 2)
	got, err := take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{carol, bob, bob}})
	if err != nil || len(got.Claimed) != 2 || got.Claimed[0].DeviceID == got.Claimed[1].DeviceID {
		t.Fatalf("%+v, %v", got, err)
	}
	if diff := cmp.Diff([]syntax.DID{carol}, got.Missing); diff != "" {
		t.Fatalf("missing:\n%s", diff)
	}
	if got.Claimed[0].Ref.String() != first.String() && got.Claimed[1].Ref.String() != first.String() {
		t.Error("the phone's oldest KeyPackage was not the one served")
	}
}

// TestLastResort: the last-resort KeyPackage is served when no other is left. It is marked, and can
// be served again, even while its row is locked (locked-last-resort). It is not served while the
// device has a one-time KeyPackage.
func TestLastResort(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	last := stock(t, db, d, 1, mlstest.LastResort)[0]
	once := stock(t, db, d, 1)[0]
	claim := keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{bob}}
	got, err := take(t, db, claim)
	if err != nil || len(got.Claimed) != 1 || got.Claimed[0].Ref.String() != once.String() || got.Claimed[0].LastResort {
		t.Fatalf("%+v, %v", got, err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM key_packages WHERE last_resort FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		got, err = take(t, db, claim)
		if err != nil || len(got.Claimed) != 1 || got.Claimed[0].Ref.String() != last.String() || !got.Claimed[0].LastResort {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestDoubleClaim: 16 callers at once empty a stock of 100, and no KeyPackage goes to two of them.
func TestDoubleClaim(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t, pgtest.MaxConns(16))
	const packages, callers = 100, 16
	stock(t, db, mlstest.NewDevice(t, bob.String()), packages)
	var mu sync.Mutex
	holders := map[string][]string{}
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			caller := syntax.DID(fmt.Sprintf("did:plc:caller%d", i))
			for {
				got, err := take(t, db, keypackages.ClaimRequest{Caller: caller, DIDs: []syntax.DID{bob}})
				if err != nil {
					t.Error(err)
					return
				}
				if len(got.Claimed) == 0 {
					return
				}
				mu.Lock()
				ref := got.Claimed[0].Ref.String()
				holders[ref] = append(holders[ref], caller.String())
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for ref, by := range holders {
		if len(by) != 1 {
			t.Errorf("%s went to %v", ref, by)
		}
	}
	var left int
	if err := db.QueryRow(context.Background(),
		`SELECT count(*) FROM key_packages WHERE state = 'available'`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	// A caller that found only locked rows stopped early. Then KeyPackages are left.
	if len(holders)+left != packages {
		t.Errorf("%d handed out and %d left of %d", len(holders), left, packages)
	}
}

func TestExpiredServed(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	stock(t, db, d, 2)
	stock(t, db, d, 1, mlstest.LastResort)
	pgtest.Age(t, db, "key_packages", 31*24*time.Hour, "not_after")
	got, err := take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{bob}})
	if err != nil || len(got.Claimed) != 0 || len(got.Missing) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
}

// TestLifeLeft: a KeyPackage whose life is nearly over is not handed out, and no Welcome can use it,
// because members would refuse the commit for ever (T14, RFC 9420 §7.3).
func TestLifeLeft(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	now := time.Now()
	life := func(left time.Duration) mlstest.Option {
		return mlstest.Lifetime(now.Add(-time.Hour), now.Add(left))
	}
	refs := stock(t, db, d, 1, life(keypackages.ServedLife+time.Minute))
	last := stock(t, db, d, 1, life(keypackages.ServedLife+time.Minute), mlstest.LastResort)
	pgtest.Age(t, db, "key_packages", 2*time.Minute, "not_after") // less than ServedLife is left
	got, err := take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{bob}})
	if err != nil || len(got.Claimed) != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	// The claimer of a KeyPackage of which less than CommitLife is left comes too late.
	short, ref := d.KeyPackage(t, life(keypackages.CommitLife-time.Minute))
	if _, err := db.Exec(t.Context(), `
		UPDATE key_packages SET ref = $1, body = $2, state = 'claimed', claimed_by = $3, claimed_at = now(),
			claim_expires_at = now() + interval '1 minute' WHERE ref = $4`,
		[]byte(ref), short, alice, []byte(refs[0])); err != nil {
		t.Fatal(err)
	}
	_, err = inTx(t, db, func(tx pgx.Tx) ([]keypackages.Recipient, error) {
		return here(keypackages.Consume(t.Context(), tx, alice, []syntax.DID{bob}, mlstest.Suite,
			[]mls.KeyPackageRef{ref}, nil))
	})
	var unusable *keypackages.UnusableError
	if !errors.As(err, &unusable) || !strings.Contains(err.Error(), "lifetime that ends at") {
		t.Fatalf("consumed: %v", err)
	}
	if err := keypackages.CheckLife(last[0], now.Add(keypackages.CommitLife), now); err != nil {
		t.Error(err)
	}
}

// here drops the KeyPackages of other services, of which there are none.
func here(recipients []keypackages.Recipient, _ []keypackages.Foreign, err error) ([]keypackages.Recipient, error) {
	return recipients, err
}

// TestConsume: a Welcome can use a KeyPackage that its maker has claimed, or that no one has, and
// each one once.
func TestConsume(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := mlstest.NewDevice(t, bob.String())
	refs := stock(t, db, d, 2)
	last := stock(t, db, d, 1, mlstest.LastResort)[0]
	consume := func(caller syntax.DID, owners []syntax.DID, refs ...mls.KeyPackageRef) ([]keypackages.Recipient, error) {
		return inTx(t, db, func(tx pgx.Tx) ([]keypackages.Recipient, error) {
			return here(keypackages.Consume(t.Context(), tx, caller, owners, mlstest.Suite, refs, nil))
		})
	}
	if _, err := take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{bob}}); err != nil { // refs[0]
		t.Fatal(err)
	}
	var unusable *keypackages.UnusableError
	if _, err := consume(carol, []syntax.DID{bob}, refs[0]); !errors.As(err, &unusable) {
		t.Fatalf("claimed by another: %v", err)
	}
	if _, err := consume(alice, []syntax.DID{carol}, refs[0]); !errors.Is(err, keypackages.ErrNotFound) {
		t.Fatalf("of someone who is not added: %v", err)
	}
	if _, err := consume(alice, []syntax.DID{bob}, refs[0], mls.KeyPackageRef("unknown")); !errors.Is(err,
		keypackages.ErrNotFound) {
		t.Fatalf("unknown: %v", err)
	}
	pgtest.Age(t, db, "key_packages", time.Hour, "claim_expires_at")
	for _, ref := range refs { // one with a lapsed claim, one without a claim
		got, err := consume(alice, []syntax.DID{bob}, ref)
		if err != nil || len(got) != 1 || got[0].DID != bob || got[0].Ref.String() != ref.String() {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, err := consume(alice, []syntax.DID{bob}, ref); !errors.As(err, &unusable) {
			t.Fatalf("a second time: %v", err)
		}
	}
	for range 2 {
		if got, err := consume(carol, []syntax.DID{bob}, last); err != nil || len(got) != 1 {
			t.Fatalf("last resort: %+v, %v", got, err)
		}
	}
}

// TestManyDevices: an answer is bounded, and a DID with many devices leaves space for the others.
func TestManyDevices(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	for i := range 25 {
		d := mlstest.NewDevice(t, bob.String())
		if i%2 == 0 {
			stock(t, db, d, 1, mlstest.LastResort)
		} else {
			stock(t, db, d, 1)
		}
	}
	body, _ := mlstest.NewDevice(t, carol.String()).KeyPackage(t)
	if _, err := publish(t, db,
		keypackages.Publication{Owner: carol, Body: body, CipherSuite: mlstest.Suite}); err != nil {
		t.Fatal(err)
	}
	got, err := take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{bob, carol}})
	if err != nil {
		t.Fatal(err)
	}
	perDID := map[syntax.DID]int{}
	for _, k := range got.Claimed {
		perDID[k.DID]++
	}
	if perDID[carol] != 1 || perDID[bob] != 25 { // 12 one-time and 13 last-resort ones
		t.Fatalf("%v", perDID)
	}
	for range 25 {
		stock(t, db, mlstest.NewDevice(t, bob.String()), 1)
	}
	if got, err = take(t, db, keypackages.ClaimRequest{Caller: alice, DIDs: []syntax.DID{bob}}); err != nil ||
		len(got.Claimed) > 40 {
		t.Fatalf("%d KeyPackages, %v", len(got.Claimed), err)
	}
}
