package api

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"mlsd/internal/limit"
)

// If many clients open streams at once, they are admitted as places become free. A client that has
// waited too long is refused. A client that hangs up does not count.
func TestOpenings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, begun := &openings{places: limit.Queue{Size: 2, MaxWaiting: 10}}, time.Now()
		for i, want := range []time.Duration{0, 0, openingPlace, openingPlace, 2 * openingPlace} {
			if err := o.wait(t.Context(), "did:plc:alice", "192.0.2.1"); err != nil {
				t.Fatal(err)
			}
			if at := time.Since(begun); at != want {
				t.Errorf("the %dth is let in after %s, want %s", i+1, at, want)
			}
		}
		time.Sleep(openingPlace)
		synctest.Wait()
		for range 2 {
			if !o.places.TryAcquire("did:plc:eve", 1) { // for good
				t.Fatal("places are not given back")
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 1000 { // none of them counts
			if err := o.wait(gone, "did:plc:mallory", "192.0.2.2"); !errors.Is(err, context.Canceled) {
				t.Fatalf("a client that has gone: %v", err)
			}
		}
		before := time.Now()
		if err := o.wait(t.Context(), "did:plc:alice", "192.0.2.1"); !errors.As(err, new(busy)) ||
			time.Since(before) != longestOpening {
			t.Errorf("behind those who keep their places: %v after %s, want busy", err, time.Since(before))
		}
		o.places.Release("did:plc:eve", 1)
		if err := o.wait(t.Context(), "did:plc:alice", "192.0.2.1"); err != nil {
			t.Errorf("after those who went away: %v", err)
		}
	})
}

// H5: sixteen openings each of forty accounts wait when another caller comes with one. The callers
// take turns, so it waits for one opening of each account, and not for all 640.
func TestOpeningsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const accounts = 40
		o := &openings{places: limit.Queue{Size: 16, MaxWaiting: 1000, MaxWaitingOfKey: maxOpeningsOfDID}}
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		for i := range accounts {
			for range maxOpeningsOfDID + 1 {
				go func() { _ = o.wait(ctx, "did:plc:mallory"+strconv.Itoa(i), "192.0.2."+strconv.Itoa(i)) }()
			}
		}
		synctest.Wait()
		before := time.Now()
		if err := o.wait(t.Context(), "did:plc:alice", "198.51.100.1"); err != nil {
			t.Fatal(err)
		}
		rounds := time.Duration(accounts/o.places.Size + 1)
		if waited := time.Since(before); waited > rounds*openingPlace {
			t.Errorf("waited %s, want at most %s", waited, rounds*openingPlace)
		}
		hangUp()
	})
}

// H5: of one caller, and of one address, only so many openings wait. Others are not refused for it.
func TestWaitingOpenings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &openings{places: limit.Queue{Size: 1, MaxWaitingOfKey: maxOpeningsOfDID}, addresses: limit.Queue{Share: 20}}
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
		_, waiting := o.places.Used()
		if n, _ := o.addresses.Used(); n != 0 || waiting != 0 {
			t.Errorf("they have hung up, and %d of %d still wait", n, waiting)
		}
	})
}
