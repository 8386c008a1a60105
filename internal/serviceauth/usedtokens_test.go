package serviceauth_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

// newUsedTokensDB returns a database with the table that UsedTokens documents.
func newUsedTokensDB(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := pgtest.Empty(t)
	if _, err := db.Exec(t.Context(), `
		CREATE UNLOGGED TABLE used_tokens (
			iss        text        NOT NULL,
			jti_hash   bytea       NOT NULL,
			expires_at timestamptz NOT NULL,
			PRIMARY KEY (iss, jti_hash)
		)`); err != nil {
		t.Fatal(err)
	}
	return db
}

func TestUsedTokens(t *testing.T) {
	t.Parallel()
	db := newUsedTokensDB(t)
	store := serviceauth.NewUsedTokens(db)
	alice, bob := authtest.NewIdentity(t), authtest.NewIdentity(t)
	soon := time.Now().Add(time.Minute)
	for i, tc := range []struct {
		id    *authtest.Identity
		jti   string
		exp   time.Time
		fresh bool
	}{
		{alice, "1", soon, true},
		{alice, "1", soon, false},
		{alice, "1", soon.Add(time.Hour), false},
		{bob, "1", soon, true},
		{alice, "\x00 1'; --", soon, true},
		{alice, "old", time.Now().Add(-time.Hour), true},
		{alice, "old", soon, false}, // an old row that is not swept counts too
	} {
		if fresh, err := store.Use(t.Context(), tc.id.DID, tc.jti, tc.exp); err != nil || fresh != tc.fresh {
			t.Errorf("use %d: %t, %v; want %t", i, fresh, err, tc.fresh)
		}
	}
	db.Close()
	if fresh, err := store.Use(t.Context(), bob.DID, "2", soon); err == nil || fresh {
		t.Errorf("without a database: %t, %v", fresh, err)
	}
}

// Sweep deletes what expired over a minute ago, in batches, and nothing else.
func TestSweep(t *testing.T) {
	t.Parallel()
	db := newUsedTokensDB(t)
	if _, err := db.Exec(t.Context(), `
		INSERT INTO used_tokens
		SELECT 'did:plc:x', int4send(i), clock_timestamp() - interval '61 seconds' FROM generate_series(1, $1) i
		UNION ALL
		SELECT 'did:plc:y', int4send(i), clock_timestamp() - interval '10 seconds' FROM generate_series(1, 7) i`,
		serviceauth.SweepBatch+5); err != nil {
		t.Fatal(err)
	}
	store := serviceauth.NewUsedTokens(db)
	for _, want := range []int64{serviceauth.SweepBatch, 5, 0} {
		if n, err := store.Sweep(t.Context()); err != nil || n != want {
			t.Errorf("Sweep = %d, %v; want %d", n, err, want)
		}
	}
	var left int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM used_tokens`).Scan(&left); err != nil || left != 7 {
		t.Errorf("%d rows left, %v; want 7", left, err)
	}
}

// One token, two nodes, many requests at once: exactly one passes.
func TestUseAcrossNodes(t *testing.T) {
	t.Parallel()
	db := newUsedTokensDB(t)
	alice := authtest.NewIdentity(t)
	now := time.Now()
	var nodes []*serviceauth.Validator
	for range 2 {
		v, err := serviceauth.New(serviceauth.Config{
			Audiences: serviceauth.Audiences(service),
			Directory: authtest.NewDirectory(t, alice),
			Replays:   serviceauth.NewUsedTokens(db),
			Now:       func() time.Time { return now },
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, v)
	}
	for range 10 {
		authorization := alice.Authorization(t, string(service), string(send), now)
		var passed atomic.Int32
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if _, err := nodes[i%2].Validate(context.WithoutCancel(t.Context()), authorization, send, true, nil); err == nil {
					passed.Add(1)
				}
			})
		}
		wg.Wait()
		if passed.Load() != 1 {
			t.Errorf("%d passed, want 1", passed.Load())
		}
	}
}

// The uses of one call are judged one by one: of those of one token the first is fresh, whoever issued another token with the same jti.
func TestUsesOfOneCall(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		testUsesAtOnce(t, apart)
	}
}

func testUsesAtOnce(t *testing.T, apart bool) {
	t.Helper()
	store := serviceauth.NewUsedTokens(newUsedTokensDB(t))
	store.SetApart(apart)
	alice, bob := authtest.NewIdentity(t), authtest.NewIdentity(t)
	soon := time.Now().Add(time.Minute)
	var fresh [2][10]atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		who, jti := i%2, i/2%10
		wg.Go(func() {
			got, err := store.Use(t.Context(), []*authtest.Identity{alice, bob}[who].DID, strconv.Itoa(jti), soon)
			if err != nil {
				t.Error(err)
			}
			if got {
				fresh[who][jti].Add(1)
			}
		})
	}
	wg.Wait()
	for who := range fresh {
		for jti := range fresh[who] {
			if n := fresh[who][jti].Load(); n != 1 {
				t.Errorf("token %d of %d was fresh %d times, want once", jti, who, n)
			}
		}
	}
}
