package welcome_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgtest"
	"mlsd/mls"
	"mlsd/outbox"
	"mlsd/welcome"
)

// devices returns n devices of bob.
func devices(n int) (to []welcome.Recipient) {
	for i := range n {
		to = append(to, welcome.Recipient{DID: bob, DeviceID: fmt.Sprint("device", i), Ref: mls.KeyPackageRef(fmt.Sprint(i))})
	}
	return to
}

// ended inserts n Welcomes of did that have ended, into one epoch each, from 1 on.
func ended(t *testing.T, db *pgxpool.Pool, convo uuid.UUID, did syntax.DID, n int) {
	t.Helper()
	_, err := db.Exec(t.Context(), `
		INSERT INTO welcomes (convo_id, id, recipient_did, device_id, key_package_ref, epoch, created_at, state)
		SELECT $1, gen_random_uuid(), $2, 'phone', 'ref', n, clock_timestamp(), 'superseded' FROM generate_series(1, $3) n`,
		convo, did, n)
	if err != nil {
		t.Fatal(err)
	}
}

func epochs(t *testing.T, db *pgxpool.Pool, convo uuid.UUID, did syntax.DID) (s string) {
	t.Helper()
	err := db.QueryRow(t.Context(), `
		SELECT format('%s from %s to %s', count(*), min(epoch), max(epoch))
		FROM welcomes WHERE convo_id = $1 AND recipient_did = $2 AND state = 'superseded'`, convo, did).Scan(&s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestManyWelcomes: an account that sends its own devices Welcomes again and again has a bounded
// number of them in a convo. What a fetch, a confirmation and a commit read stays bounded too.
func TestManyWelcomes(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	convo, to := uuid.New(), devices(50)
	join(t, db, convo, bob)
	const commits = 60
	for epoch := range int64(commits) {
		add(t, db, convo, epoch, to...)
	}
	var live, all int
	if err := db.QueryRow(t.Context(),
		`SELECT count(*) FILTER (WHERE state = 'available'), count(*) FROM welcomes`).Scan(&live, &all); err != nil {
		t.Fatal(err)
	}
	if live != 50 || all != 50+welcome.KeepEnded {
		t.Fatalf("%d Welcomes, %d of them can be fetched; want %d and 50", all, live, 50+welcome.KeepEnded)
	}
	for sql, args := range map[string][]any{
		welcome.OpenLease:       {convo, bob, "none", []byte(nil), "getWelcome", grace},
		welcome.ConfirmDelivery: {convo, bob, "none", []byte(nil), "confirmWelcome", true, "", outbox.Arrival},
		welcome.LockOpen:        {convo, []syntax.DID{bob}},
	} {
		if rows := rowsRead(t, db, sql, args...); rows > all {
			t.Errorf("%d rows read by %s", rows, sql)
		}
	}
	service := newService(db, welcome.Policy{Grace: grace, OnExpiry: welcome.Release}, nil)
	d, err := service.Fetch(t.Context(), convo, welcome.Device{DID: bob, DeviceID: "device7"})
	if err != nil || d.Epoch != commits-1 {
		t.Fatalf("epoch %d, %v", d.Epoch, err)
	}
}

// TestTrimmed: the newest that have ended stay, as do those of other people and convos. A pile from
// before goes in parts of bounded size.
func TestTrimmed(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	convo, other := uuid.New(), uuid.New()
	const n = 20000
	ended(t, db, convo, bob, n)
	ended(t, db, convo, "did:plc:carol", n)
	ended(t, db, other, bob, n)
	// It has been there for longest, and the device can still fetch it.
	add(t, db, uuid.New(), 1, welcome.Recipient{DID: bob, DeviceID: "tablet", Ref: mls.KeyPackageRef("old")})
	if _, err := db.Exec(t.Context(), `UPDATE welcomes SET convo_id = $1, epoch = 0 WHERE device_id = 'tablet'`,
		convo); err != nil {
		t.Fatal(err)
	}
	if rows := rowsRead(t, db, welcome.Trim, convo, []syntax.DID{bob}, welcome.KeepEnded,
		welcome.TrimEnded); rows > 2*(welcome.KeepEnded+2*welcome.TrimEnded) {
		t.Errorf("%d rows read", rows)
	}
	for epoch := int64(n); epoch < n+20; epoch++ {
		add(t, db, convo, epoch+1, welcome.Recipient{DID: bob, DeviceID: "laptop", Ref: mls.KeyPackageRef("new")})
	}
	// Of the laptop's, the last one can be fetched, and the one before has ended after the trimming.
	got := []string{epochs(t, db, convo, bob), epochs(t, db, convo, "did:plc:carol"), epochs(t, db, other, bob)}
	want := []string{fmt.Sprintf("%d from %d to %d", welcome.KeepEnded, n+20-welcome.KeepEnded, n+19),
		"20000 from 1 to 20000", "20000 from 1 to 20000"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
	var there bool
	if err := db.QueryRow(t.Context(),
		`SELECT EXISTS (SELECT FROM welcomes WHERE device_id = 'tablet' AND state = 'available')`).Scan(&there); err != nil ||
		!there {
		t.Errorf("a Welcome that can be fetched was deleted: %v", err)
	}
}

// TestTrimDoesNotWait: Add passes over a Welcome that another transaction has locked.
func TestTrimDoesNotWait(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	convo := uuid.New()
	ended(t, db, convo, bob, welcome.KeepEnded+2)
	other, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), `SELECT FROM welcomes WHERE epoch = 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL lock_timeout = '10s'`); err != nil {
			return err
		}
		return welcome.Add(t.Context(), tx, convo, 1000, []byte("welcome"), devices(1))
	})
	if err := errors.Join(err, other.Rollback(t.Context())); err != nil {
		t.Fatal(err)
	}
	if got, want := epochs(t, db, convo, bob),
		fmt.Sprintf("%d from 1 to %d", welcome.KeepEnded+1, welcome.KeepEnded+2); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// rowsRead returns how many rows of welcomes a statement looks at, and takes back what it does.
func rowsRead(t *testing.T, db *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	return planOf(t, db, sql, args...).rows("welcomes")
}

// planOf runs a statement, takes back what it does, and returns how it ran.
func planOf(t *testing.T, db *pgxpool.Pool, sql string, args ...any) planNode {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var plan []struct{ Plan planNode }
	err = tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+sql, args...).Scan(&plan)
	if err := errors.Join(err, tx.Rollback(t.Context())); err != nil {
		t.Fatal(err)
	}
	return plan[0].Plan
}

// planNode is a step of a plan, with what it did.
type planNode struct {
	Table   string     `json:"Relation Name"`
	Rows    int        `json:"Actual Rows"`
	Removed int        `json:"Rows Removed by Filter"`
	Loops   int        `json:"Actual Loops"`
	Plans   []planNode `json:"Plans"`
}

// rows returns how many rows the scans of a table looked at.
func (p planNode) rows(table string) (n int) {
	if p.Table == table {
		n = (p.Rows + p.Removed) * p.Loops
	}
	for _, below := range p.Plans {
		n += below.rows(table)
	}
	return n
}
