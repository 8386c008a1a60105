package api

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestMemoryPool: a caller is limited by its own share, and all callers by the whole pool. Released
// memory can be reserved again.
func TestMemoryPool(t *testing.T) {
	t.Parallel()
	b := newMemoryPool(10, 6)
	take := func(caller string, n int64) *reservation {
		t.Helper()
		r := &reservation{}
		if err := b.reserve(t.Context(), r, caller, "", n); err != nil {
			t.Fatalf("%s takes %d: %v", caller, n, err)
		}
		return r
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	alice := take("alice", 6)
	var tooMuch limited
	if err := b.reserve(soon, &reservation{}, "alice", "", 1); !errors.As(err, &tooMuch) {
		t.Fatalf("alice takes more than her share: %v", err)
	}
	bob := take("bob", 4)
	var full busy
	later, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := b.reserve(later, &reservation{}, "carol", "", 1); !errors.As(err, &full) {
		t.Fatalf("there is no memory: %v", err)
	}
	alice.shrink(2)
	carol := take("carol", 4)
	alice.shrink(5) // changes nothing: it has reserved less
	for _, r := range []*reservation{alice, bob, carol, {}} {
		r.release()
		r.release()
	}
	if len(b.shares) != 0 || !b.all.TryAcquire(10) {
		t.Fatalf("not everything came back: %v", b.shares)
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	for caller, want := range map[string]string{
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "::ffff:192.0.2.7",
		"did:plc:alice": "did:plc:alice", "fe80::1%eth0": "fe80::/64",
	} {
		if got := network(caller); got != want {
			t.Errorf("%s: %s, want %s", caller, got, want)
		}
	}
}
