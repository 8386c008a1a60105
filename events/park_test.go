package events_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"mlsd/events"
)

// A parked subscription calls its reader once: at an event, at its end, and at Wake.
func TestPark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	convo := w.convo(t, alice, bob)
	n.publish(t)
	s := n.subscribe(t, bob)
	nothing(t, s) // it is live
	woken := make(chan bool, 10)
	wake := func() { woken <- true }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if s.Park(ended, wake) {
		t.Error("it parks although its context has ended")
	}
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"event", func() { w.say(t, convo, alice, 1); w.say(t, convo, alice, 1); n.publish(t) }},
		{"wake", func() { s.Wake(); s.Wake() }},
		{"end", func() { n.hub.End(bob, events.ErrReplaced) }},
	} {
		if !s.Park(t.Context(), wake) {
			t.Fatalf("%s: it does not park", c.name)
		}
		c.do()
		<-woken
		if c.name == "event" {
			if s.Park(t.Context(), wake) {
				t.Error("it parks although an event waits")
			}
			for range 2 {
				if e := s.More(); e == nil {
					t.Error("the event is not there")
				}
			}
		}
		if len(woken) > 0 {
			t.Errorf("%s: it was woken twice", c.name)
		}
	}
	if s.Park(t.Context(), wake) {
		t.Error("it parks although it has ended")
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, events.ErrReplaced) {
		t.Errorf("got %v", err)
	}
}

// A reader that parks at the moment when an event comes misses nothing.
func TestParkRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	convo := w.convo(t, alice, bob)
	n.publish(t)
	s := n.subscribe(t, bob)
	nothing(t, s)
	const all = 300
	var reader sync.WaitGroup
	reader.Go(func() {
		woken := make(chan bool, 1)
		for got := 0; got < all; {
			if s.More() != nil {
				got++
			} else if s.Park(t.Context(), func() { woken <- true }) {
				<-woken
			}
		}
	})
	for range all {
		w.say(t, convo, alice, 1)
		n.publish(t)
	}
	reader.Wait()
}
