package events_test

import (
	"testing"

	"mlsd/outbox"
)

// round does one round of the sequencer, after which it leads if it can.
func (n *node) round(t testing.TB) (moved bool) {
	t.Helper()
	n.seq.TryNow()
	moved, err := n.seq.Round(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return moved
}

// A hub reads the stream when it has grown, once, and only if somebody subscribes.
func TestHubReadsForItsSubscriptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	convo := w.convo(t, alice)
	n.publish(t)
	w.say(t, convo, alice, 1)
	n.round(t)
	if n.hub.Due() {
		t.Error("a hub without subscriptions is to read")
	}
	s := n.subscribe(t, alice)
	if !n.hub.Due() {
		t.Error("somebody subscribes, and the hub does not read what it has left")
	}
	n.publish(t)
	w.say(t, convo, alice, 1)
	n.round(t)
	if !n.hub.Due() {
		t.Error("the stream has grown, and the hub does not read")
	}
	if _, err := n.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.hub.Grown(n.hub.Head()) // the notification of the same step
	if n.hub.Due() {
		t.Error("the hub reads twice what it has read")
	}
	n.hub.Wake() // a new generation
	if !n.hub.Due() || n.hub.Due() {
		t.Error("the hub does not read once when it is woken")
	}
	want(t, next(t, s, 1), "2")
}

// Who subscribes at a hub that has left events unread gets those from then on, of the convos of then.
func TestSubscribeAtIdleHub(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	left, joined := w.convo(t, alice, bob), w.convo(t, alice)
	n.publish(t)
	w.say(t, left, alice, 1)
	w.must(t, left, bob, outbox.Left)
	w.must(t, joined, bob, outbox.Joined)
	w.say(t, joined, alice, 1)
	for n.round(t) {
	}
	s := n.subscribe(t, bob)
	nothing(t, s)
	w.say(t, left, alice, 1)
	w.say(t, joined, alice, 1)
	w.must(t, joined, bob, outbox.Left)
	w.say(t, joined, alice, 1)
	n.publish(t)
	want(t, next(t, s, 2), "2", "bob left")
	nothing(t, s)
}
