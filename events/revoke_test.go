package events_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/events"
)

// A revoked device's subscriptions end on every node, also one that asks for single convos. Those
// of other devices and other people go on.
func TestEndDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, other := w.node(t), w.node(t)
	one.run(t)
	other.run(t)
	kept := []*events.Subscription{
		one.subscribeTo(t, events.Request{DID: alice, DeviceID: "tablet"}),
		one.subscribeTo(t, events.Request{DID: alice}),
		other.subscribeTo(t, events.Request{DID: bob, DeviceID: "phone"}),
	}
	ends := make(chan error)
	lost := []*events.Subscription{
		one.subscribeTo(t, events.Request{DID: alice, DeviceID: "phone"}),
		other.subscribeTo(t, events.Request{DID: alice, DeviceID: "phone", Convos: []uuid.UUID{uuid.New()}}),
	}
	for _, s := range lost {
		go func() {
			_, err := s.Next(t.Context())
			ends <- err
		}()
	}
	for left := len(lost); left > 0; {
		// A node hears nothing before it listens, so the revocation is repeated.
		err := pgx.BeginFunc(t.Context(), w.db,
			func(tx pgx.Tx) error { return events.EndDevice(t.Context(), tx, alice, "phone") })
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ends:
			if !errors.Is(err, events.ErrClosing) {
				t.Errorf("it ended with %v", err)
			}
			left--
		case <-time.After(100 * time.Millisecond):
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i, s := range kept {
		if _, err := s.Next(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("subscription %d: %v", i, err)
		}
	}
}
