package accounts_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mlsd/internal/pgtest"
	"mlsd/people/accounts"
)

// limit limits an account, and returns the end.
func (f *fixture) limit(did syntax.DID, percent int, lasts time.Duration) *time.Time {
	f.Helper()
	until, err := f.store.Limit(f.Context(), f.db, did, percent, lasts, "olga", "floods")
	f.check(err)
	return until
}

// percents are the percentages of alice, bob and carol.
func (n *node) percents() []int {
	return []int{n.Percent(alice), n.Percent(bob), n.Percent(carol)}
}

func (n *node) wantPercents(want ...int) {
	n.f.Helper()
	if diff := cmp.Diff(want, n.percents()); diff != "" {
		n.f.Errorf("percentages (-want +got):\n%s", diff)
	}
}

// A second node follows each change of a limit when it reads next, and one that starts knows all. A
// limited account is not refused.
func TestLimitOfTwoNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := f.node()
	f.limit(alice, 10, 0)
	f.limit(bob, 1000, 0)
	second := f.node()
	first.wantPercents(100, 100, 100) // it has not read yet
	first.update()
	for _, n := range []*node{first, second} {
		n.wantPercents(10, 1000, 100)
		f.check(n.check(alice))
	}
	f.block(bob)
	f.limit(alice, 25, 0)
	second.update()
	second.wantPercents(25, 1000, 100)
	for _, want := range []bool{true, false} {
		was, err := f.store.Unlimit(t.Context(), f.db, alice)
		f.check(err)
		if was != want {
			t.Errorf("unlimited: %t, want %t", was, want)
		}
	}
	second.update()
	second.wantPercents(100, 1000, 100)
	if err := second.check(bob); !errors.Is(err, accounts.ErrBlocked) {
		t.Errorf("bob, who is blocked too: %v", err)
	}
	if len(second.refused) != 1 {
		t.Errorf("streams of %v have ended, want those of bob", second.refused)
	}
}

// A limit ends by itself, on a node that reads nothing more too. Then nothing of it is left.
func TestLimitEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	until := f.limit(alice, 10, time.Hour)
	f.limit(bob, 10, 0)
	now := time.Now()
	n := f.node(func(c *accounts.GateConfig) { c.Now = func() time.Time { return now } })
	for at, want := range map[time.Time]int{now: 10, until.Add(-time.Millisecond): 10, *until: 100,
		until.Add(time.Hour): 100} {
		now = at
		n.wantPercents(want, 10, 100)
	}
	got := f.get(alice).Limit
	if diff := cmp.Diff(&accounts.Limit{Percent: 10, Until: until, By: "olga", Reason: "floods"}, got,
		cmpopts.IgnoreFields(accounts.Limit{}, "At")); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	pgtest.Sweep(t, accounts.Sweeps(f.db)...)
	if f.get(alice).Limit == nil {
		t.Error("a limit is swept before its end")
	}
	pgtest.Age(t, f.db, "accounts", time.Hour, "limit_until")
	pgtest.Sweep(t, accounts.Sweeps(f.db)...)
	if f.get(alice).Limit != nil || f.get(bob).Limit == nil {
		t.Errorf("after the sweep: alice %+v, bob %+v", f.get(alice).Limit, f.get(bob).Limit)
	}
	n.update()
	now = *until
	f.limit(alice, 20, time.Hour)
	n.update()
	n.wantPercents(20, 10, 100)
	_, err := f.db.Exec(t.Context(), `UPDATE accounts SET limit_until = now() WHERE did = $1`, alice)
	f.check(err)
	if l := f.get(alice).Limit; l != nil {
		t.Errorf("an ended limit is shown: %+v", l)
	}
}

// Nothing of a limit is left of an account that was erased, in memory neither. Nor do reasons of other
// accounts' limits and blocks name it.
func TestErasureEndsALimit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.limit(alice, 10, 0)
	f.block(alice)
	n := f.node()
	n.wantPercents(10, 100, 100)
	_, err := f.store.Limit(t.Context(), f.db, bob, 10, 0, "olga", "floods "+alice.String()+" and "+alice.String()+"a")
	f.check(err)
	f.check(f.store.Block(t.Context(), f.db, carol, "olga", "threatens "+alice.String()))
	f.check(f.store.BeginErasure(t.Context(), f.db, alice))
	f.erase(alice)
	n.update()
	for _, n := range []*node{n, f.node()} {
		n.wantPercents(100, 10, 100)
		if err := n.check(alice); !errors.Is(err, accounts.ErrBlocked) {
			t.Errorf("the block, which stays: %v", err)
		}
	}
	var left int
	f.check(f.db.QueryRow(t.Context(), `
		SELECT count(*) FROM accounts
		WHERE num_nonnulls(limit_percent, limit_until, limited_at, limited_by, limited_reason) > 0 AND did <> $1`,
		bob).Scan(&left))
	if left != 0 {
		t.Errorf("%d rows of others have a limit", left)
	}
	for _, reason := range []string{f.get(bob).Limit.Reason, f.get(carol).Block.Reason} {
		if strings.Contains(strings.ReplaceAll(reason, alice.String()+"a", ""), alice.String()) ||
			!strings.Contains(reason, "did:erased:") {
			t.Errorf("a reason is %q", reason)
		}
	}
	if !strings.HasSuffix(f.get(bob).Limit.Reason, alice.String()+"a") {
		t.Errorf("another DID is not the same: %q", f.get(bob).Limit.Reason)
	}
}

// Limits are bounded, because each node remembers them all. Who has one can get another.
func TestTooManyLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.limit(alice, 10, 0)
	_, err := f.db.Exec(t.Context(), `
		INSERT INTO accounts (did, limit_percent, limited_at, limited_by, limited_reason, version)
		SELECT 'did:plc:limited' || n, 10, now(), 'olga', 'floods', 1 FROM generate_series(1, 9999) n`)
	f.check(err)
	if _, err := f.store.Limit(t.Context(), f.db, bob, 10, 0, "olga", "floods"); !errors.Is(err,
		accounts.ErrTooManyLimited) {
		t.Errorf("one more: %v", err)
	}
	f.limit(alice, 20, 0)
}

// A node without the memory for all refused accounts has their limits.
func TestLimitBesideTooManyRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	n := f.node(func(c *accounts.GateConfig) { c.MaxRefused = 1 })
	f.block(bob)
	f.block(carol)
	n.update()
	f.limit(alice, 10, 0)
	n.update()
	n.wantPercents(10, 100, 100)
}
