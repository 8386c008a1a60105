package convos_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/messages"
	"mlsd/people/accounts"
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
	want := []string{"did:plc:bob promoted by did:plc:alice", "did:plc:alice demoted by did:plc:bob",
		"did:plc:alice promoted by did:plc:bob"}
	f.tells(t, want...)
}

// tells checks which changes of roles the members are told, in order.
func (f *fixture) tells(t *testing.T, want ...string) {
	t.Helper()
	rows, err := f.db.Query(t.Context(), `
		SELECT did || ' ' || (detail->>'change') || ' by ' || coalesce(detail->>'by', 'the server') FROM outbox
		WHERE kind = 11 ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	told, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, told, cmpopts.EquateEmpty()); diff != "" {
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

// Two admins leave at once, again and again: who stays is an admin.
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

// refusal is how the service comes to refuse a person, and back.
type refusal struct {
	name  string
	begin func(t *testing.T, s *accounts.Store, tx pgx.Tx, did syntax.DID) error
	end   func(t *testing.T, s *accounts.Store, tx pgx.Tx, did syntax.DID) error
}

// stated is a statement of the network about an account.
func stated(status accounts.Status, seq int64) func(*testing.T, *accounts.Store, pgx.Tx, syntax.DID) error {
	return func(t *testing.T, s *accounts.Store, tx pgx.Tx, did syntax.DID) error {
		_, err := s.SetStatus(t.Context(), tx, "relay", []accounts.Change{{DID: did, Status: status, Seq: seq}})
		return err
	}
}

var refusals = []refusal{
	{"taken down", stated(accounts.TakenDown, 1), stated(accounts.Active, 2)},
	{"deactivated", stated(accounts.Deactivated, 1), stated(accounts.Active, 2)},
	{"suspended", stated(accounts.Suspended, 1), stated(accounts.Active, 2)},
	{"deleted", stated(accounts.Deleted, 1), stated(accounts.Active, 2)},
	{"blocked by an operator", func(t *testing.T, s *accounts.Store, tx pgx.Tx, did syntax.DID) error {
		return s.Block(t.Context(), tx, did, "olga", "spam")
	}, func(t *testing.T, s *accounts.Store, tx pgx.Tx, did syntax.DID) error {
		_, err := s.Unblock(t.Context(), tx, did)
		return err
	}},
}

// When the last admin is refused, the member who has been there longest is admin, in the same
// transaction. The admin who comes back has its role still.
func TestHandOverFromARefusedAdmin(t *testing.T) {
	t.Parallel()
	store := accounts.NewStore(0, convos.HandOver)
	for _, r := range refusals {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.do(t, func(tx pgx.Tx) error {
				_, err := convos.Add(t.Context(), tx, f.addition(t, alice, 1, carol))
				return err
			})
			undone := errors.New("undone")
			err := pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
				return errors.Join(r.begin(t, store, tx, alice), undone)
			})
			if !errors.Is(err, undone) {
				t.Fatal(err)
			}
			f.tells(t)
			for range 2 { // again: nothing more happens
				f.do(t, func(tx pgx.Tx) error { return r.begin(t, store, tx, alice) })
				if diff := cmp.Diff([]syntax.DID{alice, bob}, f.admins(t, bob)); diff != "" {
					t.Errorf("admins (-want +got):\n%s", diff)
				}
			}
			if err := f.change(t, bob, bob, false); !errors.Is(err, convos.ErrLastAdmin) {
				t.Errorf("the only admin who is served demotes itself: %v", err)
			}
			f.do(t, func(tx pgx.Tx) error { return r.end(t, store, tx, alice) })
			if err := f.change(t, alice, bob, false); err != nil {
				t.Errorf("an admin who has come back: %v", err)
			}
			f.tells(t, "did:plc:bob promoted by the server", "did:plc:bob demoted by did:plc:alice")
		})
	}
}

// An heir is a member whom the service serves, and has accepted the convo if anybody has.
func TestHeirs(t *testing.T) {
	t.Parallel()
	store := accounts.NewStore(0, convos.HandOver)
	f := newFixture(t)
	f.do(t, func(tx pgx.Tx) error {
		_, err := convos.Add(t.Context(), tx, f.addition(t, alice, 1, carol))
		return err
	})
	refuse := func(did syntax.DID) {
		t.Helper()
		f.do(t, func(tx pgx.Tx) error { return store.Block(t.Context(), tx, did, "olga", "spam") })
	}
	refuse(bob)
	f.tells(t)
	if err := f.leave(t, alice); err != nil {
		t.Fatal(err)
	}
	f.tells(t, "did:plc:carol promoted by the server")
	refuse(carol) // nobody is left to be an admin
	f.tells(t, "did:plc:carol promoted by the server")
	sweep := convos.SweepRoles(f.db)[1]
	swept := func(want int64) {
		t.Helper()
		if n, more, err := sweep.Batch(t.Context()); n != want || more || err != nil {
			t.Errorf("swept %d, more %t, %v", n, more, err)
		}
	}
	swept(0)
	f.do(t, func(tx pgx.Tx) error {
		_, err := store.Unblock(t.Context(), tx, bob)
		return err
	})
	swept(1)
	swept(0)
	f.tells(t, "did:plc:carol promoted by the server", "did:plc:bob promoted by the server")
}

// Admins who leave and are refused at once, again and again: an admin who is served stays.
func TestAdminsAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	store := accounts.NewStore(0, convos.HandOver)
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
				if err := store.Block(t.Context(), f.db, did, "olga", "spam"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if diff := cmp.Diff([]syntax.DID{alice, bob, carol}, f.admins(t, carol)); diff != "" {
			t.Fatalf("admins (-want +got):\n%s", diff)
		}
		f.tells(t, "did:plc:bob promoted by did:plc:alice", "did:plc:carol promoted by the server")
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
	sweep := convos.SweepRoles(f.db)[0]
	if n, more, err := sweep.Batch(t.Context()); n != 1 || more || err != nil {
		t.Errorf("swept %d, more %t, %v", n, more, err)
	}
	if diff := cmp.Diff([]syntax.DID{bob}, f.admins(t, bob)); diff != "" {
		t.Errorf("admins (-want +got):\n%s", diff)
	}
	if n, _, err := sweep.Batch(t.Context()); n != 0 || err != nil {
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
