package accounts_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/people/accounts"
)

func TestGateRefusesEverybodyUntilItIsLoaded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	gate, err := accounts.NewGate(accounts.GateConfig{DB: f.db})
	f.check(err)
	if err := gate.Check(t.Context(), alice); !errors.Is(err, accounts.ErrUnavailable) {
		t.Errorf("before Load: %v", err)
	}
	if _, err := gate.Withheld(t.Context(), []syntax.DID{alice}); !errors.Is(err, accounts.ErrUnavailable) {
		t.Errorf("before Load: %v", err)
	}
	f.check(gate.Load(t.Context()))
	f.check(gate.Check(t.Context(), alice))
}

// A change that one node writes is known to each, whether it ran then or starts later.
func TestGateOfTwoNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.known(bob)
	one, two := f.node(), f.node()
	f.block(alice)
	f.set(change(bob, accounts.Suspended, 1))
	one.update()
	two.update()
	for _, n := range []*node{one, two, f.node()} {
		if err := n.check(alice); !errors.Is(err, accounts.ErrBlocked) {
			t.Errorf("alice: %v", err)
		}
		var inactive *accounts.InactiveError
		if err := n.check(bob); !errors.As(err, &inactive) || inactive.Status != accounts.Suspended {
			t.Errorf("bob: %v", err)
		}
		f.check(n.check(carol))
		withheld, err := n.Withheld(t.Context(), []syntax.DID{carol, bob, alice})
		f.check(err)
		if diff := cmp.Diff([]syntax.DID{bob, alice}, withheld); diff != "" {
			t.Errorf("withheld (-want +got):\n%s", diff)
		}
	}
	if len(one.refused) != 2 || !errors.Is(two.refused[alice], accounts.ErrBlocked) {
		t.Errorf("told: %v, %v", one.refused, two.refused)
	}
	if was, err := f.store.Unblock(t.Context(), f.db, alice); err != nil || !was {
		t.Fatal(was, err)
	}
	f.set(change(bob, accounts.Active, 2))
	one.update()
	f.check(one.check(alice))
	f.check(one.check(bob))
	if err := two.check(alice); err == nil {
		t.Error("a node knows a change that it has not read")
	}
	two.update()
	f.check(two.check(alice))
	if was, err := f.store.Unblock(t.Context(), f.db, alice); err != nil || was {
		t.Fatal(was, err)
	}
}

// A block stays while the network says that the account is active, and an account that is blocked
// and inactive is active again after both.
func TestBlockAndStatusAreApart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n := f.node()
	f.block(alice)
	f.set(change(alice, accounts.Deactivated, 1))
	f.set(change(alice, accounts.Active, 2))
	n.update()
	if err := n.check(alice); !errors.Is(err, accounts.ErrBlocked) {
		t.Errorf("after the account came back: %v", err)
	}
	f.set(change(alice, accounts.Deactivated, 3))
	if _, err := f.store.Unblock(t.Context(), f.db, alice); err != nil {
		t.Fatal(err)
	}
	n.update()
	if err := n.check(alice); !errors.As(err, new(*accounts.InactiveError)) {
		t.Errorf("after the unblock: %v", err)
	}
}

// A write that takes its version first and commits last is not missed by a node that reads between.
func TestGateMissesNoLateCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n := f.node()
	tx, err := f.db.Begin(t.Context())
	f.check(err)
	f.check(f.store.Block(t.Context(), tx, alice, "olga", ""))
	second := make(chan error, 1)
	go func() { second <- f.store.Block(t.Context(), f.db, bob, "olga", "") }()
	pgtest.AwaitLockWaits(f, f.db, 1) // the second write for the first one
	n.update()
	f.check(tx.Commit(t.Context()))
	f.check(<-second)
	n.update()
	for _, did := range []syntax.DID{alice, bob} {
		if err := n.check(did); !errors.Is(err, accounts.ErrBlocked) {
			t.Errorf("%s: %v", did, err)
		}
	}
}

// With more refused accounts than a node remembers it asks about each caller. Nobody is forgotten,
// and changes still reach it.
func TestGateWithTooManyRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	now := noon
	few := func(c *accounts.GateConfig) { c.MaxRefused, c.Now = 3, func() time.Time { return now } }
	before := f.node(few)
	var all []syntax.DID
	for i := range 5 {
		did := syntax.DID(fmt.Sprintf("did:plc:blocked%d", i))
		f.block(did)
		all = append(all, did)
	}
	before.update()
	for _, n := range []*node{before, f.node(few)} {
		for _, did := range all {
			if err := n.check(did); !errors.Is(err, accounts.ErrBlocked) {
				t.Errorf("%s: %v", did, err)
			}
		}
		f.check(n.check(alice))
		withheld, err := n.Withheld(t.Context(), []syntax.DID{alice, all[4], all[0]})
		if diff := cmp.Diff([]syntax.DID{all[4], all[0]}, withheld); err != nil || diff != "" {
			t.Errorf("withheld: %v (-want +got):\n%s", err, diff)
		}
		// An answer is used for a second, but not after the node has read that it changed.
		f.block(alice)
		f.check(n.check(alice))
		n.update()
		if err := n.check(alice); !errors.Is(err, accounts.ErrBlocked) || !errors.Is(n.refused[alice], accounts.ErrBlocked) {
			t.Errorf("after the block: %v, told %v", err, n.refused)
		}
		if _, err := f.store.Unblock(t.Context(), f.db, alice); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
		f.check(n.check(alice))
	}
}

// An older database in place of this one has lower versions. The node then reads everything anew.
func TestGateAfterARestore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.block(alice)
	f.block(bob)
	n := f.node()
	err := pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `DELETE FROM accounts WHERE did = $1`, bob); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `UPDATE account_clock SET version = 1`)
		return err
	})
	f.check(err)
	n.update()
	if err := n.check(alice); !errors.Is(err, accounts.ErrBlocked) {
		t.Errorf("alice: %v", err)
	}
	f.check(n.check(bob))
}

func TestGateWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.block(alice)
	n := f.node()
	f.db.Close()
	if err := n.RunOnce(t.Context()); err == nil {
		t.Error("a reading without a database did not fail")
	}
	if err := n.check(alice); !errors.Is(err, accounts.ErrBlocked) {
		t.Errorf("alice: %v", err)
	}
	if gate, err := accounts.NewGate(accounts.GateConfig{DB: f.db}); err != nil || gate.Load(t.Context()) == nil {
		t.Errorf("a gate without a database was loaded: %v", err)
	}
}

// With ModeClosed only accounts are admitted that have something here.
func TestModeClosed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	now := noon
	n := f.node(func(c *accounts.GateConfig) { c.Mode, c.Now = accounts.ModeClosed, func() time.Time { return now } })
	_, err := f.db.Exec(t.Context(), `
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, state, created_at)
		VALUES ($1, 'ref', '', 1, '', now(), false, 'expired', now())`, carol)
	f.check(err)
	f.check(n.check(carol))
	if err := n.check(alice); !errors.Is(err, accounts.ErrNotAdmitted) {
		t.Errorf("an unknown account: %v", err)
	}
	f.known(alice)
	now = now.Add(time.Second)
	f.check(n.check(alice))
	// Somebody who is blocked is told so, known or not.
	f.block(bob)
	n.update()
	if err := n.check(bob); !errors.Is(err, accounts.ErrBlocked) {
		t.Errorf("a blocked account: %v", err)
	}
}
