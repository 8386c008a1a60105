package convos_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/messages"
)

// admins returns the admins, as by sees them.
func (f *fixture) admins(t *testing.T, by syntax.DID) (admins []syntax.DID) {
	t.Helper()
	c, err := convos.Get(t.Context(), f.db, f.id, by)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Members {
		if m.Admin {
			admins = append(admins, m.DID)
		}
	}
	if c.Admin != slices.Contains(admins, by) {
		t.Errorf("%s is told that it is an admin: %t, and the list is %v", by, c.Admin, admins)
	}
	return admins
}

func (f *fixture) change(t *testing.T, caller, target syntax.DID, promote bool) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
		return convos.ChangeRole(t.Context(), tx, convos.RoleChange{f.id, caller, target, promote})
	})
}

func (f *fixture) leave(t *testing.T, did syntax.DID) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
		_, err := convos.Leave(t.Context(), tx, convos.Departure{ConvoID: f.id, Caller: did, Target: did})
		return err
	})
}

func TestRoles(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const dave = syntax.DID("did:plc:dave")
	steps := []struct {
		caller, target syntax.DID
		promote        bool
		want           error
		admins         []syntax.DID
	}{
		{bob, bob, true, convos.ErrNotAdmin, []syntax.DID{alice}},
		{bob, alice, false, convos.ErrNotAdmin, []syntax.DID{alice}},
		{dave, alice, true, convos.ErrNotFound, []syntax.DID{alice}},
		{alice, dave, true, convos.ErrTargetNotMember, []syntax.DID{alice}},
		{alice, alice, false, convos.ErrLastAdmin, []syntax.DID{alice}},
		{alice, bob, true, nil, []syntax.DID{alice, bob}},
		{alice, bob, true, nil, []syntax.DID{alice, bob}},
		{bob, alice, false, nil, []syntax.DID{bob}},
		{bob, alice, false, nil, []syntax.DID{bob}},
		{alice, alice, false, nil, []syntax.DID{bob}},
		{alice, bob, false, convos.ErrNotAdmin, []syntax.DID{bob}},
		{bob, alice, true, nil, []syntax.DID{alice, bob}},
	}
	for i, s := range steps {
		if err := f.change(t, s.caller, s.target, s.promote); !errors.Is(err, s.want) {
			t.Errorf("step %d: %v, want %v", i, err, s.want)
		}
		if diff := cmp.Diff(s.admins, f.admins(t, alice)); diff != "" {
			t.Errorf("step %d: admins (-want +got):\n%s", i, diff)
		}
	}
	var told []string
	rows, err := f.db.Query(t.Context(), `SELECT did || ' ' || (detail->>'change') || ' by ' || (detail->>'by') FROM outbox
		WHERE kind = 11 ORDER BY id`)
	if err == nil {
		told, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"did:plc:bob promoted by did:plc:alice", "did:plc:alice demoted by did:plc:bob",
		"did:plc:alice promoted by did:plc:bob"}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// The member who has been there longest is admin when the last admin has left.
func TestHandOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.do(t, func(tx pgx.Tx) error {
		_, err := convos.Add(t.Context(), tx, f.addition(t, alice, 1, carol))
		return err
	})
	if err := f.leave(t, alice); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]syntax.DID{bob}, f.admins(t, bob)); diff != "" {
		t.Errorf("admins after alice has left (-want +got):\n%s", diff)
	}
	if err := f.change(t, bob, carol, true); err != nil {
		t.Error(err)
	}
}

// Two admins leave at once, again and again: whoever stays is an admin.
func TestAdminsLeaveAtOnce(t *testing.T) {
	t.Parallel()
	for range 5 {
		f := newFixture(t)
		f.do(t, func(tx pgx.Tx) error {
			_, err := convos.Add(t.Context(), tx, f.addition(t, alice, 1, carol))
			return err
		})
		if err := f.change(t, alice, bob, true); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, did := range []syntax.DID{alice, bob} {
			all.Go(func() {
				if err := f.leave(t, did); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if diff := cmp.Diff([]syntax.DID{carol}, f.admins(t, carol)); diff != "" {
			t.Fatalf("admins (-want +got):\n%s", diff)
		}
	}
}

// A server without admins lets a creator leave, and a newer one hands over.
func TestHandOverAfterAnOlderServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.do(t, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `
			UPDATE members SET left_at = now(), left_seq = 0, left_epoch = 1 WHERE did = $1`, alice)
		return err
	})
	if got := f.admins(t, bob); got != nil {
		t.Fatalf("admins before: %v", got)
	}
	if n, more, err := convos.SweepRoles(f.db).Batch(t.Context()); n != 1 || more || err != nil {
		t.Errorf("swept %d, more %t, %v", n, more, err)
	}
	if diff := cmp.Diff([]syntax.DID{bob}, f.admins(t, bob)); diff != "" {
		t.Errorf("admins (-want +got):\n%s", diff)
	}
	if n, _, err := convos.SweepRoles(f.db).Batch(t.Context()); n != 0 || err != nil {
		t.Errorf("swept again: %d, %v", n, err)
	}
}

// Only admins change the name. A field that is absent stays.
func TestUpdate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	update := func(caller syntax.DID, name, description *string) (got [2]string, err error) {
		err = pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
			c, err := convos.Update(t.Context(), tx, convos.Labels{f.id, caller, name, description})
			for i, text := range []*string{c.Name, c.Description} {
				if text != nil {
					got[i] = *text
				}
			}
			return err
		})
		return got, err
	}
	if _, err := update(bob, new("mine"), nil); !errors.Is(err, convos.ErrNotPermitted) {
		t.Errorf("a member: %v", err)
	}
	for i, s := range []struct {
		name, description *string
		want              [2]string
	}{
		{new("Family"), new("us"), [2]string{"Family", "us"}},
		{new("Family"), nil, [2]string{"Family", "us"}}, // no event
		{nil, new(""), [2]string{"Family", ""}},
	} {
		if got, err := update(alice, s.name, s.description); got != s.want || err != nil {
			t.Errorf("update %d: %q, %v", i, got, err)
		}
	}
	var n int
	if err := f.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE kind = 12`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d events of names, %v", n, err)
	}
	f.do(t, func(tx pgx.Tx) error {
		_, err := convos.Close(t.Context(), tx, f.id)
		return err
	})
	if _, err := update(alice, new("late"), nil); !errors.Is(err, messages.ErrConvoClosed) {
		t.Errorf("a closed convo: %v", err)
	}
}
