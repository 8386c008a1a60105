package quota_test

import (
	"math"
	"sync/atomic"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/pgtest"
	"mlsd/people/quota"
)

func TestScaled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit   int64
		percent int
		want    int64
	}{
		{50_000, 10, 5_000}, {20, 10, 2}, {20, 4, 1}, {1, 1, 1}, {150, 33, 49}, {0, 10, 0}, {0, 1000, 0},
		{50_000, 1000, 500_000}, {7, 100, 7},
		{math.MaxInt64, 100, math.MaxInt64}, {math.MaxInt64, 1000, math.MaxInt64}, {math.MaxInt64, 1, math.MaxInt64 / 100},
	} {
		if got := quota.Scaled(test.limit, test.percent); got != test.want {
			t.Errorf("%d %% of %d: %d, want %d", test.percent, test.limit, got, test.want)
		}
	}
}

// The limits of one DID are scaled as soon as the percentage changes. Those of others, of the address
// and of a convo stay.
func TestScaledBy(t *testing.T) {
	t.Parallel()
	var percent atomic.Int32
	percent.Store(100)
	of := func(did syntax.DID) int {
		if did == alice {
			return int(percent.Load())
		}
		return 100
	}
	limits := messages(10)
	limits[quota.AddressShare] = 4
	db := pgtest.Database(t)
	n := newNode(t, db, limits, quota.ScaledBy(of))
	sends := func(did syntax.DID) (admitted int) {
		for n.take(did) {
			admitted++
		}
		return admitted
	}
	for range 3 {
		n.take(alice)
	}
	percent.Store(50)
	if got := sends(alice); got != 2 {
		t.Errorf("after 3 of 5 alice sends %d, want 2", got)
	}
	want := "quota messages-per-day is used up: 5 of 5; resets at 2026-01-02T00:00:00Z"
	if err := n.open(alice).Take(quota.Cost{Of: quota.Messages, N: 1}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	percent.Store(20)
	if got := sends(alice); got != 0 {
		t.Errorf("after 5 of 2 alice sends %d", got)
	}
	if got := sends("did:plc:bob"); got != 10 {
		t.Errorf("bob sends %d, want 10", got)
	}
	percent.Store(1000)
	if got := sends(alice); got != 25 {
		t.Errorf("after 5 of 100, with 25 left of the 40 of the address, alice sends %d, want 25", got)
	}
	n.flush()
	if got := stored(t, db)["2026-01-01 did:plc:alice messages-per-day"]; got != 30 {
		t.Errorf("%d messages are counted, want 30", got)
	}
}

// A node holds back one per cent of the limit that a DID has, not of the limit of the others.
func TestScaledLimitHoldsBackLess(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	n := newNode(t, db, messages(1000), quota.ScaledBy(func(did syntax.DID) int {
		if did == alice {
			return 10
		}
		return 100
	}))
	n.take(alice)
	n.take("did:plc:bob")
	n.due()
	rows := stored(t, db)
	if rows["2026-01-01 did:plc:alice messages-per-day"] != 1 || rows["2026-01-01 did:plc:bob messages-per-day"] != 0 {
		t.Errorf("written: %v", rows)
	}
}
