package accounts_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/people/accounts"
)

// A relay states the status of millions of accounts. Only those that this service knows get a row.
func TestStatusOfUnknownAccountsIsNotStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.known(alice, bob)
	stored := f.set(change(alice, accounts.TakenDown, 1), change(bob, accounts.Active, 2),
		change(carol, accounts.Deleted, 3))
	if diff := cmp.Diff([]syntax.DID{alice}, stored); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var rows int
	f.check(f.db.QueryRow(t.Context(), `SELECT count(*) FROM accounts`).Scan(&rows))
	if rows != 1 {
		t.Errorf("%d rows", rows)
	}
	if got := f.get(alice).Status; got != accounts.TakenDown {
		t.Errorf("alice is %s", got)
	}
	if got := f.get(carol); got.Status != accounts.Active || got.Block != nil {
		t.Errorf("an account without a row is %+v", got)
	}
}

// Statements come twice after a reconnect, and two relays do not agree at once.
func TestOlderStatementsHaveNoEffect(t *testing.T) {
	t.Parallel()
	at := func(seq int64, second int) accounts.Change {
		return accounts.Change{DID: alice, Status: accounts.Active, Seq: seq,
			At: noon.Add(time.Duration(second) * time.Second)}
	}
	const other = "jetstream wss://jetstream.example.com"
	for name, c := range map[string]struct {
		source string
		next   accounts.Change
		want   accounts.Status
	}{
		"the same again":                   {relay, at(10, 10), accounts.Suspended},
		"an older one again":               {relay, at(9, 9), accounts.Suspended},
		"a newer one":                      {relay, at(11, 11), accounts.Active},
		"a newer one of a clock gone back": {relay, at(11, 5), accounts.Active},
		"a newer one of seqs begun anew":   {relay, at(1, 11), accounts.Active},
		"an older one of another relay":    {other, at(99, 9), accounts.Suspended},
		"a newer one of another relay":     {other, at(1, 11), accounts.Active},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.known(alice)
			f.set(accounts.Change{DID: alice, Status: accounts.Suspended, Seq: 10, At: noon.Add(10 * time.Second)})
			_, err := f.store.SetStatus(t.Context(), f.db, c.source, []accounts.Change{c.next})
			f.check(err)
			if got := f.get(alice).Status; got != c.want {
				t.Errorf("the account is %s, want %s", got, c.want)
			}
		})
	}
}

// A deleted account is due for erasure after the delay, unless it comes back before.
func TestErasureIsDueAfterADelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.known(alice, bob)
	due := func(after time.Duration) []syntax.DID {
		t.Helper()
		dids, err := f.store.Due(t.Context(), f.db, time.Now().Add(after), 10)
		f.check(err)
		return dids
	}
	f.set(change(alice, accounts.Deleted, 1), change(bob, accounts.Deleted, 2))
	first := f.get(alice).EraseAfter
	f.set(change(alice, accounts.Deleted, 3)) // stated again: the delay does not begin anew
	if again := f.get(alice).EraseAfter; first == nil || again == nil || !first.Equal(*again) {
		t.Errorf("erased after %v, then %v", first, again)
	}
	if got := due(eraseAfter - time.Minute); len(got) != 0 {
		t.Errorf("due too early: %v", got)
	}
	if diff := cmp.Diff([]syntax.DID{alice, bob}, due(eraseAfter+time.Minute)); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
	f.set(change(bob, accounts.Active, 4))
	if diff := cmp.Diff([]syntax.DID{alice}, due(eraseAfter+time.Minute)); diff != "" {
		t.Errorf("due after one has come back (-want +got):\n%s", diff)
	}
	still := func(did syntax.DID) (due bool) {
		t.Helper()
		f.tx(func(tx pgx.Tx) (err error) {
			due, err = f.store.StillDue(t.Context(), tx, did, time.Now().Add(eraseAfter+time.Minute))
			return err
		})
		return due
	}
	if still(bob) || !still(alice) {
		t.Error("due are not those who stay away")
	}
	f.check(f.store.BeginErasure(t.Context(), f.db, alice))
	if got := due(eraseAfter + time.Minute); len(got) != 0 || still(alice) {
		t.Errorf("due while it is being erased: %v", got)
	}
}

// An operator takes back what a relay has stated. A relay that is right can then state it again,
// even if the wrong one had put its statement into the future.
func TestReactivate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n := f.node()
	f.known(alice)
	reactivate := func() (was accounts.Status, err error) {
		t.Helper()
		f.tx(func(tx pgx.Tx) error {
			was, err = f.store.Reactivate(t.Context(), tx, alice)
			return nil
		})
		return was, err
	}
	far := change(alice, accounts.Deleted, 9)
	far.At = noon.AddDate(100, 0, 0)
	f.set(far)
	n.update()
	if err := n.check(alice); err == nil {
		t.Error("a deleted account is served")
	}
	if was, err := reactivate(); err != nil || was != accounts.Deleted {
		t.Errorf("reactivated: %s, %v", was, err)
	}
	n.update()
	f.check(n.check(alice))
	if a := f.get(alice); a.Status != accounts.Active || a.EraseAfter != nil || a.StatusAt != nil {
		t.Errorf("reactivated: %+v", a)
	}
	if was, err := reactivate(); err != nil || was != accounts.Active {
		t.Errorf("reactivated again: %s, %v", was, err)
	}
	f.set(change(alice, accounts.Suspended, 1))
	if got := f.get(alice).Status; got != accounts.Suspended {
		t.Errorf("stated anew: %s", got)
	}
	f.check(f.store.BeginErasure(t.Context(), f.db, alice))
	if _, err := reactivate(); !errors.Is(err, accounts.ErrErasing) {
		t.Errorf("while it is being erased: %v", err)
	}
}

// An account that is being erased is refused. Afterwards it can begin anew, and its DID is in no row.
func TestErasing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n := f.node()
	f.known(alice)
	f.set(change(alice, accounts.Suspended, 1))
	f.check(f.store.BeginErasure(t.Context(), f.db, alice))
	n.update()
	var inactive *accounts.InactiveError
	if err := n.check(alice); !errors.As(err, &inactive) || inactive.Status != accounts.Erasing {
		t.Errorf("while it is being erased: %v", err)
	}
	f.erase(alice)
	n.update()
	if err := errors.Join(n.check(alice), f.node().check(alice)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if a := f.get(alice); a.Status != accounts.Active || a.ErasedAt == nil || a.ErasingAt != nil {
		t.Errorf("afterwards: %+v", a)
	}
}

// Erasure is no way around a block.
func TestBlockOutlivesErasure(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n := f.node()
	few := f.node(func(c *accounts.GateConfig) { c.MaxRefused = 1 })
	f.block(alice)
	f.block(carol)
	for range 2 { // a second erasure meets the row of the first
		f.check(f.store.BeginErasure(t.Context(), f.db, alice))
		n.update()
		f.erase(alice)
		n.update()
	}
	few.update()
	for name, node := range map[string]*node{"a node": n, "one that begins": f.node(), "one that remembers few": few} {
		if err := node.check(alice); !errors.Is(err, accounts.ErrBlocked) {
			t.Errorf("%s: %v", name, err)
		}
		if err := node.check(bob); err != nil {
			t.Errorf("%s: another: %v", name, err)
		}
		if withheld, err := node.Withheld(t.Context(), []syntax.DID{bob, alice}); err != nil || len(withheld) != 1 ||
			withheld[0] != alice {
			t.Errorf("%s withholds %v, %v", name, withheld, err)
		}
	}
	var rows int
	f.check(f.db.QueryRow(t.Context(), `SELECT count(*) FROM accounts a WHERE strpos(a::text, $1) > 0`,
		alice.String()).Scan(&rows))
	if a := f.get(alice); rows != 0 || a.Block == nil || a.Block.By != "olga" {
		t.Errorf("%d rows name alice, who is %+v", rows, a)
	}
	pgtest.Sweep(t, accounts.Sweeps(f.db)...)
	if was, err := f.store.Unblock(t.Context(), f.db, alice); err != nil || !was {
		t.Errorf("unblocked: %v, %v", was, err)
	}
	n.update()
	f.check(n.check(alice))
}

// An account that comes back in the moment in which its erasure begins is not erased.
func TestReturnBeatsErasure(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.known(alice)
	f.set(change(alice, accounts.Deleted, 1))
	due := make(chan error)
	f.tx(func(tx pgx.Tx) error {
		_, err := f.store.SetStatus(t.Context(), tx, relay, []accounts.Change{change(alice, accounts.Active, 2)})
		go func() {
			due <- pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
				still, err := f.store.StillDue(t.Context(), tx, alice, time.Now().Add(2*eraseAfter))
				if still {
					err = errors.New("it is still due")
				}
				return err
			})
		}()
		pgtest.AwaitLockWaits(t, f.db, 1)
		return err
	})
	f.check(<-due)
}

// With a delay of 0 nothing is ever erased.
func TestErasureCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.store = accounts.NewStore(0, alone)
	f.known(alice)
	f.set(change(alice, accounts.Deleted, 1))
	if a := f.get(alice); a.Status != accounts.Deleted || a.EraseAfter != nil {
		t.Errorf("%+v", a)
	}
}

func TestBlockSaysWhoAndWhy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.block(alice)
	f.check(f.store.Block(t.Context(), f.db, alice, "otto", "worse spam"))
	if b := f.get(alice).Block; b == nil || b.By != "otto" || b.Reason != "worse spam" || b.At.IsZero() {
		t.Errorf("%+v", b)
	}
}

func TestKnown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.known(alice)
	f.block(bob)
	known, err := f.store.Known(t.Context(), f.db, []syntax.DID{carol, bob, alice})
	f.check(err)
	slices.Sort(known)
	if diff := cmp.Diff([]syntax.DID{alice, bob}, known); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
