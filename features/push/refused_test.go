package push_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/features/push"
)

// No device of an account that may not use the node is called, whether its job was made before or
// after. What happened meanwhile is not pushed when the account comes back.
func TestRefusedAccountIsNotCalled(t *testing.T) {
	t.Parallel()
	var refused []syntax.DID
	failure := errors.New("the database cannot be reached")
	b := newBench(t, func(c *push.Config) {
		c.Withheld = func(_ context.Context, dids []syntax.DID) ([]syntax.DID, error) {
			return slices.DeleteFunc(dids, func(did syntax.DID) bool { return !slices.Contains(refused, did) }), failure
		}
	})
	b.send("waits")
	b.run() // it is not known whether bob may be called
	if calls := b.phone.taken(); len(calls) != 0 {
		t.Fatalf("%d calls without an answer of the gate", len(calls))
	}
	failure, refused = nil, []syntax.DID{bob}
	b.exec(`UPDATE push_jobs SET next_attempt_at = now()`)
	b.run()
	b.send("meanwhile")
	b.run()
	b.run()
	if n := b.count(`SELECT count(*) FROM push_jobs WHERE state = 'done'`); n != 2 ||
		b.count(`SELECT count(*) FROM push_jobs`) != 2 {
		t.Errorf("%d jobs have ended", n)
	}
	refused = nil
	b.run()
	if calls := b.phone.taken(); len(calls) != 0 {
		t.Fatalf("%d calls", len(calls))
	}
	b.send("back")
	b.run()
	if calls := b.phone.taken(); len(calls) != 1 {
		t.Fatalf("%d calls after the account has come back", len(calls))
	}
}
