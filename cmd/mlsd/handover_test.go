package main

import (
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/mlsapi"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// handedOver is what the database has of a convo's roles: its admins who can act, and how often each
// change was told.
type handedOver struct {
	Admins []syntax.DID
	Told   map[string]int
}

func readHandedOver(t *testing.T, db *pgxpool.Pool, convo string) (h handedOver) {
	t.Helper()
	h.Told = map[string]int{}
	err := pgx.BeginTxFunc(t.Context(), db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) (err error) {
		h.Admins, err = pgpool.Collect(t.Context(), tx, pgx.RowTo[syntax.DID], `
			SELECT did FROM members m WHERE convo_id = $1 AND left_at IS NULL AND role <> 'member'
				AND NOT EXISTS (SELECT FROM accounts WHERE did = m.did AND blocked_at IS NOT NULL)
			ORDER BY did`, convo)
		if err != nil {
			return err
		}
		told, err := pgpool.Collect(t.Context(), tx, pgx.RowTo[string], `
			SELECT did || ' ' || (detail->>'change') FROM outbox WHERE kind = 11 AND convo_id = $1
			UNION ALL
			SELECT did || ' ' || (detail->>'change') FROM events WHERE kind = 11 AND convo_id = $1`, convo)
		for _, text := range told {
			h.Told[text]++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// A server that gets kill -9 at any failpoint of a write that takes a convo's last admin away leaves
// the convo with an admin. A retry ends what was begun, and the new admin is told once. (Erasures:
// TestErasureKilled.)
func TestHandOverKilled(t *testing.T) {
	t.Parallel()
	w, url, dir := newWorld(t), pgtest.URL(t), pgtest.DataDir(t)
	env := []string{"MLSD_DATABASE_URL=" + url}
	server := w.spawn(t, dir, env...)
	db, err := pgpool.OpenMaintenance(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	type act struct {
		name, method string
		repeat       func(c *convo, admin, other *user) (run func() error)
	}
	request := func(r request) func() error {
		return func() error {
			a, err := r.send()
			if err == nil {
				a.ok()
			}
			return err
		}
	}
	acts := []act{
		{"the last admin leaves", mlsapi.NSIDLeaveConvo, func(c *convo, admin, _ *user) func() error {
			return request(admin.procedure(mlsapi.NSIDLeaveConvo,
				&mlsapi.LeaveConvoInput{ConvoID: c.id, IdempotencyKey: newKey()}))
		}},
		{"an admin demotes itself", mlsapi.NSIDDemoteAdmin, func(c *convo, admin, other *user) func() error {
			admin.procedure(mlsapi.NSIDPromoteAdmin, &mlsapi.PromoteAdminInput{ConvoID: c.id, DID: other.did()}).must().ok()
			return request(admin.procedure(mlsapi.NSIDDemoteAdmin,
				&mlsapi.DemoteAdminInput{ConvoID: c.id, DID: admin.did(), IdempotencyKey: newKey()}))
		}},
		{"the last admin is blocked", "account.block", func(_ *convo, admin, _ *user) func() error {
			return func() error { return w.operate("account", "block", admin.did().String()).wait() }
		}},
	}
	for _, a := range acts {
		for _, point := range []string{failpoint.BeforeCommit, failpoint.AfterCommit} {
			admin, heir, last := w.user(), w.user(), w.user()
			if last.did() < heir.did() { // they come at once, so the order of their DIDs decides
				heir, last = last, heir
			}
			c := admin.create(heir, last)
			for _, u := range []*user{heir, last} {
				u.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.id}).must().ok()
			}
			run := a.repeat(c, admin, heir)
			before := readHandedOver(t, db, c.id)
			arm(t, w, point, a.method)
			if err := run(); err == nil {
				t.Fatalf("%s, %s: the server lives", a.name, point)
			}
			server.wait()
			server = w.spawn(t, dir, env...)

			promoted := heir.did().String() + " promoted"
			after := handedOver{Admins: []syntax.DID{heir.did()}, Told: map[string]int{promoted: 1}}
			if a.method == mlsapi.NSIDDemoteAdmin {
				after.Told[admin.did().String()+" demoted"] = 1
			}
			want := before
			if point == failpoint.AfterCommit {
				want = after
			}
			if diff := cmp.Diff(want, readHandedOver(t, db, c.id)); diff != "" {
				t.Errorf("%s, %s, after the kill (-want +got):\n%s", a.name, point, diff)
			}
			for range 2 {
				if err := run(); err != nil {
					t.Fatalf("%s, %s, again: %v", a.name, point, err)
				}
			}
			if diff := cmp.Diff(after, readHandedOver(t, db, c.id)); diff != "" {
				t.Errorf("%s, %s, in the end (-want +got):\n%s", a.name, point, diff)
			}
			heir.procedure(mlsapi.NSIDPromoteAdmin, &mlsapi.PromoteAdminInput{ConvoID: c.id, DID: last.did()}).must().ok()
			w.wantSound()
		}
	}
}
