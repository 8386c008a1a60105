package api

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

// If many clients open streams at once, they are admitted one after the other. A client that would
// wait too long is refused. A client that hangs up does not count.
func TestOpenings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		openings, begun := &openings{rate: rate.NewLimiter(10, 2), perAddress: 200, waiting: map[string]int{}}, time.Now()
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
