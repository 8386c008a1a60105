package welcome_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgtest"
	"mlsd/welcome"
)

// bodies inserts the bytes of n epochs of a convo, from 1 on. Each epoch has a Welcome for a device
// of its own, of the given state.
func bodies(t *testing.T, db *pgxpool.Pool, convo uuid.UUID, n int, state welcome.State, age time.Duration) {
	t.Helper()
	for _, sql := range []string{`
		INSERT INTO welcome_bodies (convo_id, epoch, body, created_at)
		SELECT $1, n, 'welcome', now() - $4::interval FROM generate_series(1, $2::integer) n WHERE $3 <> ''`, `
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, state, created_at)
		SELECT $1, gen_random_uuid(), 'did:plc:bob', 'device' || n, 'ref', n, $3, now() - $4::interval FROM generate_series(1,
			$2::integer) n`,
	} {
		if _, err := db.Exec(t.Context(), sql, convo, n, state, age); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEraseGoesOn: bytes that can still be fetched do not keep the sweep from those behind them. A
// round looks at a bounded number, the next one goes on, and after the last it begins anew.
func TestEraseGoesOn(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	sweeps := welcome.Sweeps(db, welcome.Policy{Grace: grace, OnExpiry: welcome.Release})
	convo := uuid.New()
	bodies(t, db, convo, welcome.LooksOfARound+10, welcome.Available, 10*24*time.Hour)
	bodies(t, db, uuid.New(), 3, welcome.Superseded, 2*24*time.Hour) // newer than all of those
	round := func(want int64) {
		t.Helper()
		if done := pgtest.Sweep(t, sweeps...); len(done) != min(int(want), 1) || done["welcome_bodies"] != want {
			t.Fatalf("%v; want %d erased", done, want)
		}
	}
	round(0)
	round(3)
	if _, err := db.Exec(t.Context(),
		`UPDATE welcomes SET state = 'superseded', version = version + 1 WHERE epoch IN (1, 2)`); err != nil {
		t.Fatal(err)
	}
	round(2)
	round(0)
	round(0)
}

// TestEraseReadsFew: a statement of the sweep looks at as many bytes as it is told, and reads few
// Welcomes for each, also if one convo has very many.
func TestEraseReadsFew(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	convo := uuid.New()
	const n = 20000
	bodies(t, db, convo, n, welcome.Available, 10*24*time.Hour)
	// One epoch has many that have ended.
	if _, err := db.Exec(t.Context(), `
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, state, attempts, confirmed_at,
			created_at)
		SELECT $1, gen_random_uuid(), 'did:plc:carol', 'phone', 'ref', 1, 'consumed', 1, now() - interval '9 days', now() -
			interval '10 days'
		FROM generate_series(1, $2::integer)`, convo, n); err != nil {
		t.Fatal(err)
	}
	const looks = 500
	for _, statistics := range []string{"", "ANALYZE welcomes, welcome_bodies"} {
		if _, err := db.Exec(t.Context(), statistics); err != nil {
			t.Fatal(err)
		}
		plan := planOf(t, db, welcome.EraseBytes, looks, 24*time.Hour, time.Time{}, uuid.Nil, 0)
		if rows := plan.rows("welcome_bodies"); rows > 2*looks {
			t.Errorf("%d bytes looked at", rows)
		}
		if rows := plan.rows("welcomes"); rows > 2*looks {
			t.Errorf("%d Welcomes read", rows)
		}
	}
}
