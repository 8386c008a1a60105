package api

import (
	"context"
	"errors"
	"testing"
	"time"
)

// H1: a verification costs its caller units by the time that it takes.
func TestVerificationIsCharged(t *testing.T) {
	t.Parallel()
	h := &handlers{places: newPlaces(1)}
	c := &call{ctx: t.Context(), caller: "did:plc:mallory"}
	err := h.verify(c, 1, func() {
		for begun := time.Now(); time.Since(begun) < 10*unitVerification; {
		}
	})
	if err != nil || c.charged < 10 {
		t.Errorf("a verification of %s cost %d units: %v", 10*unitVerification, c.charged, err)
	}
}

// H1: a caller has one verification at a time, and small ones do not wait for large ones.
func TestVerificationPlaces(t *testing.T) {
	t.Parallel()
	for processors, want := range map[int][2]int64{1: {1, 1}, 2: {1, 1}, 8: {4, 4}, 9: {5, 4}} {
		h := &handlers{places: newPlaces(processors)}
		if h.places.small.Size != want[0] || h.places.large.Size != want[1] {
			t.Errorf("%d processors: %d small and %d large places", processors, h.places.small.Size, h.places.large.Size)
		}
		ended, end := context.WithCancel(t.Context())
		end() // a request that has to wait gives up
		first := &call{ctx: t.Context(), caller: "did:plc:mallory"}
		err := h.verify(first, maxSmallObjects+1, func() {
			again := &call{ctx: ended, caller: first.caller}
			if err := h.verify(again, maxSmallObjects+1, func() {}); !errors.As(err, new(limited)) {
				t.Errorf("a second verification of the same caller: %v", err)
			}
			small := &call{ctx: ended, caller: "did:plc:alice"}
			if err := h.verify(small, maxSmallObjects, func() {}); err != nil {
				t.Errorf("a small verification beside a large one: %v", err)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}
