package api

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"mlsd/internal/limit"
)

// If many clients open streams at once, they are admitted one after the other. A client that would
// wait too long is refused. A client that hangs up does not count.
func TestOpenings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		openings, begun := &openings{rate: rate.NewLimiter(10, 2)}, time.Now()
		for i, want := range []time.Duration{0, 0, 100, 200} {
			if err := openings.wait(t.Context(), "did:plc:alice", "192.0.2.1"); err != nil {
				t.Fatal(err)
			}
			if at := time.Since(begun).Round(time.Millisecond); at != want*time.Millisecond {
				t.Errorf("the %dth is let in after %s, want %dms", i+1, at, want)
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 1000 { // none of them counts
			if err := openings.wait(gone, "did:plc:mallory", "192.0.2.2"); !errors.Is(err, context.Canceled) {
				t.Fatalf("a client that has gone: %v", err)
			}
		}
		if err := openings.wait(t.Context(), "did:plc:alice", "192.0.2.1"); err != nil {
			t.Fatal(err)
		}
		if at := time.Since(begun).Round(time.Millisecond); at != 300*time.Millisecond {
			t.Errorf("after those who went away it took until %s, want 300ms", at)
		}
		for range 150 {
			openings.rate.Reserve()
		}
		if err := openings.wait(t.Context(), "did:plc:alice", "192.0.2.1"); !errors.As(err, new(busy)) {
			t.Errorf("behind 15 s of others: %v, want busy", err)
		}
	})
}

// H5: of one caller, and of one address, only so many openings wait. Others are not refused for it.
func TestWaitingOpenings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &openings{rate: rate.NewLimiter(10, 1), dids: limit.Queue{Share: maxOpeningsOfDID},
			addresses: limit.Queue{Share: 20}}
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		wait := func(did, address string, n int) (refused int) {
			results := make(chan error, n)
			for range n {
				go func() { results <- o.wait(ctx, did, address) }()
			}
			synctest.Wait()
			for range len(results) {
				if err := <-results; errors.As(err, new(limited)) {
					refused++
				}
			}
			return refused
		}
		wait("did:plc:zero", "192.0.2.9", 1) // takes the one that need not wait
		if n := wait("did:plc:mallory", "192.0.2.1", 20); n != 20-maxOpeningsOfDID {
			t.Errorf("%d of a caller's 20 are refused, want %d", n, 20-maxOpeningsOfDID)
		}
		if n := wait("did:plc:oscar", "192.0.2.1", 10); n != 10-(20-maxOpeningsOfDID) {
			t.Errorf("%d of another's 10 at the same address are refused, want %d", n, 10-(20-maxOpeningsOfDID))
		}
		if n := wait("did:plc:alice", "192.0.2.2", 1); n != 0 {
			t.Error("an honest caller is refused")
		}
		hangUp()
		synctest.Wait()
		for _, q := range []*limit.Queue{&o.dids, &o.addresses} {
			if n, _ := q.Used(); n != 0 {
				t.Errorf("they have hung up, and %d still wait", n)
			}
		}
	})
}
