package serviceauth_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/internal/worker"
)

// newUsedTokensDB returns a database with the table that UsedTokens documents.
func newUsedTokensDB(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := pgtest.Empty(t)
	if _, err := db.Exec(t.Context(), `
		CREATE UNLOGGED TABLE used_tokens (
			token      uuid        PRIMARY KEY,
			expires_at timestamptz NOT NULL
		)`); err != nil {
		t.Fatal(err)
	}
	return db
}

// tokenOf returns a made-up token.
func tokenOf(n byte) serviceauth.TokenID { return serviceauth.TokenID{15: n} }

func TestUsedTokens(t *testing.T) {
	t.Parallel()
	db := newUsedTokensDB(t)
	store := serviceauth.NewUsedTokens(db)
	soon := time.Now().Add(time.Minute)
	for i, tc := range []struct {
		token byte
		exp   time.Time
		want  error
	}{
		{1, soon, nil},
		{1, soon, serviceauth.ErrReplayed},
		{1, soon.Add(time.Hour), serviceauth.ErrReplayed},
		{2, soon, nil},
		{3, time.Now().Add(-20 * time.Second), nil}, // on its way for long
		{3, soon, serviceauth.ErrReplayed},          // an old row that is not swept counts too
		// G3: its row may have been swept. It was not used before, and the refusal does not say so.
		{4, time.Now().Add(-time.Minute), serviceauth.ErrLate},
	} {
		if err := store.Use(t.Context(), tokenOf(tc.token), tc.exp); !errors.Is(err, tc.want) {
			t.Errorf("use %d: %v, want %v", i, err, tc.want)
		}
	}
	db.Close()
	if err := store.Use(t.Context(), tokenOf(9), soon); err == nil || errors.Is(err, serviceauth.ErrReplayed) {
		t.Errorf("without a database: %v", err)
	}
}

// A token's ID depends on its issuer, method and jti only. No two different triples share an ID.
func TestTokenID(t *testing.T) {
	t.Parallel()
	alice, bob := authtest.NewIdentity(t), authtest.NewIdentity(t)
	f := newFixture(t, alice, bob)
	method := send
	id := func(who *authtest.Identity, jti string, changes ...authtest.Change) serviceauth.TokenID {
		token, err := f.Validate(t.Context(), "",
			who.Authorization(t, string(service), string(method), f.now, append(changes, authtest.Claim("jti", jti))...), method,
			true, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := token.Expires(), f.now.Add(time.Minute+5*time.Second); !got.Equal(want) {
			t.Errorf("expires %v, want %v", got, want)
		}
		return token.ID()
	}
	seen := map[serviceauth.TokenID]string{}
	for i, who := range []*authtest.Identity{alice, bob, alice} {
		if i == 2 {
			// One jti for two methods is two tokens: neither waits for the other's transaction.
			method = read
		}
		for _, jti := range []string{"1", "2", "\x001'; --", "1" + string(alice.DID)} {
			token := id(who, jti)
			if other, ok := seen[token]; ok {
				t.Errorf("%s and %s %q are one token", other, who.DID, jti)
			}
			seen[token] = string(who.DID) + " " + jti + " " + method.String()
			if again := id(who, jti, authtest.Claim("x", 1)); again != token {
				t.Errorf("%s %q is two tokens", who.DID, jti)
			}
		}
	}
}

// Sweep deletes tokens that expired over a minute ago, in batches, and no others.
func TestSweep(t *testing.T) {
	t.Parallel()
	db := newUsedTokensDB(t)
	if _, err := db.Exec(t.Context(), `
		INSERT INTO used_tokens
		SELECT gen_random_uuid(), clock_timestamp() - interval '61 seconds' FROM generate_series(1, $1) i
		UNION ALL
		SELECT gen_random_uuid(), clock_timestamp() - interval '10 seconds' FROM generate_series(1, 7) i`,
		worker.SweepRows+5); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Sweep(t, serviceauth.SweepTokens(db))["used_tokens"]; n != worker.SweepRows+5 {
		t.Errorf("%d rows deleted, want %d", n, worker.SweepRows+5)
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
				ctx := context.WithoutCancel(t.Context())
				token, err := nodes[i%2].Validate(ctx, "", authorization, send, true, nil)
				if err != nil {
					t.Error(err)
				} else if token.Use(ctx) == nil {
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

// Many uses share a call. For each token exactly one of them is fresh.
func TestUsesOfOneCall(t *testing.T) {
	t.Parallel()
	store := serviceauth.NewUsedTokens(newUsedTokensDB(t))
	soon := time.Now().Add(time.Minute)
	var fresh [20]atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			switch err := store.Use(t.Context(), tokenOf(byte(i%len(fresh))), soon); {
			case err == nil:
				fresh[i%len(fresh)].Add(1)
			case !errors.Is(err, serviceauth.ErrReplayed):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range fresh {
		if n := fresh[i].Load(); n != 1 {
			t.Errorf("token %d was fresh %d times, want once", i, n)
		}
	}
}
