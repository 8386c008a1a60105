package history

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/xrpc"
	"mlsd/clientsim/xrpc/xrpctest"
)

// soundStream returns the events that a correct server sends to a subscriber, and the history
// behind them. The subscriber is in one convo from its beginning. It is added to a second convo and
// removed from that convo.
func soundStream(t *testing.T) (*History, []xrpc.Event) {
	t.Helper()
	c := New()
	var events []xrpc.Event
	add := func(h xrpc.Event) {
		h.Cursor = int64(10 * (len(events) + 1))
		h.At = time.Now()
		events = append(events, h)
	}
	entry := func(convo, kind string, seq int64, visible bool) {
		h := xrpc.Event{Kind: kind, Convo: convo, Seq: seq, Epoch: 1, Sender: xrpctest.Other.String(),
			Body: fmt.Append(nil, convo, seq)}
		if kind == xrpc.EventMessage {
			h.ID = fmt.Sprint("id of ", convo, seq)
		}
		if c.Entry(convo, seq, DigestEntry(kind == xrpc.EventCommit, h.ID, h.Sender, h.Epoch, sha256.Sum256(h.Body))) {
			t.Fatalf("seq %d of %s twice", seq, convo)
		}
		if visible {
			add(h)
		}
	}
	turned := func(convo string, did syntax.DID, change string, seq int64) {
		add(xrpc.Event{Kind: xrpc.EventMembership, Convo: convo, DID: did.String(), By: xrpctest.Other.String(),
			Change: change, Seq: seq})
	}
	c.Created("one", xrpctest.Other, xrpctest.Other, xrpctest.Listener)
	turned("one", xrpctest.Listener, "joined", 0)
	entry("one", xrpc.EventMessage, 1, true)
	entry("one", xrpc.EventMessage, 2, true)
	c.Created("two", xrpctest.Other, xrpctest.Other)
	entry("two", xrpc.EventMessage, 1, false)
	entry("two", xrpc.EventCommit, 2, false)
	c.Joined("two", xrpctest.Other, 2, xrpctest.Listener)
	turned("two", xrpctest.Listener, "joined", 2)
	c.Welcomed(xrpctest.Listener, "two", "phone", 1)
	add(xrpc.Event{Kind: xrpc.EventWelcome, Convo: "two", Device: "phone", Epoch: 1})
	entry("two", xrpc.EventMessage, 3, true)
	c.Left("one", "left", xrpctest.Other, xrpctest.Other, 2)
	turned("one", xrpctest.Other, "left", 2)
	entry("two", xrpc.EventCommit, 4, true)
	c.Left("two", "removed", xrpctest.Other, xrpctest.Listener, 4)
	turned("two", xrpctest.Listener, "removed", 4)
	entry("two", xrpc.EventMessage, 5, false)
	entry("one", xrpc.EventMessage, 3, true)
	c.Invited(xrpctest.Listener, "of another service", "phone", 7)
	add(xrpc.Event{Kind: xrpc.EventInvitation, Convo: "of another service", Device: "phone", Epoch: 7})
	return c, events
}

func judged(c *History, events []xrpc.Event) (found []Violation, missing int64) {
	v := NewObserver("vigilant", xrpctest.Listener, "phone")
	for _, h := range events {
		v.Observe(h)
	}
	missing = v.Missing(c)
	return v.Judge(c), missing
}

func TestObserverPassesACorrectStream(t *testing.T) {
	t.Parallel()
	c, events := soundStream(t)
	found, missing := judged(c, events)
	if len(found) > 0 || missing != 0 {
		t.Errorf("a sound stream: %d missing, violations %v", missing, found)
	}
}

// Each case is one fault of a server, and the observer must report it.
func TestObserverSeesSeededViolations(t *testing.T) {
	t.Parallel()
	drop := func(i int) func([]xrpc.Event) []xrpc.Event {
		return func(events []xrpc.Event) []xrpc.Event { return slices.Delete(events, i, i+1) }
	}
	tests := map[string]struct {
		seed func([]xrpc.Event) []xrpc.Event
		kind ViolationKind
		want string
	}{
		"a lost message":      {drop(2), Lost, "seq 3 comes after 1"},
		"a lost last message": {drop(soundEvents - 2), Lost, "its log ends at seq 3, and it saw up to 2"},
		"a lost joining":      {drop(0), Broken, "comes to one who is not in the convo"},
		"a lost late joining": {drop(3), Broken, "the message at seq 3 comes to one who is not in the convo"},
		"a lost Welcome":      {drop(4), Lost, "an event welcome did not come: device phone, epoch 1"},
		"a Welcome twice": {func(events []xrpc.Event) []xrpc.Event {
			again := events[4]
			again.Cursor++
			return slices.Insert(events, 5, again)
		}, Duplicated, "an event welcome of device phone into epoch 1 came once too often"},
		"a lost invitation": {drop(soundEvents - 1), Lost, "an event invitation did not come: device phone, epoch 7"},
		"an invitation twice": {func(events []xrpc.Event) []xrpc.Event {
			again := events[soundEvents-1]
			again.Cursor++
			return append(events, again)
		}, Duplicated, "an event invitation of device phone into epoch 7 came once too often"},
		"a lost change":  {drop(6), Lost, "the roster changed 2 times, and it saw 1"},
		"a lost removal": {drop(8), Lost, "it did not see that it left at seq 4"},
		"a lost removing commit": {drop(7), Lost,
			"did:plc:listener removed when the log ended at seq 4, and seq 3 was the last it saw"},
		"a repeated event": {func(events []xrpc.Event) []xrpc.Event {
			return slices.Insert(events, 2, events[1])
		}, Duplicated, "cursor 20 (message) comes after 20"},
		"a message under two cursors": {func(events []xrpc.Event) []xrpc.Event {
			again := events[1]
			again.Cursor++
			return slices.Insert(events, 2, again)
		}, Duplicated, "seq 1 comes after 1"},
		"two events the wrong way round": {func(events []xrpc.Event) []xrpc.Event {
			events[1], events[2] = events[2], events[1]
			return events
		}, Duplicated, "cursor 20 (message) comes after 30"},
		"two entries the wrong way round": {func(events []xrpc.Event) []xrpc.Event {
			events[1], events[2] = events[2], events[1]
			events[1].Cursor, events[2].Cursor = 20, 30
			return events
		}, Lost, "seq 2 comes after 0"},
		"a message after the removal": {func(events []xrpc.Event) []xrpc.Event {
			return append(events, xrpc.Event{Cursor: 1000, Kind: xrpc.EventMessage, Convo: "two", Seq: 5, ID: "x", Sender: "y"})
		}, Broken, "the message at seq 5 comes to one who is not in the convo"},
		"a convo of others": {func(events []xrpc.Event) []xrpc.Event {
			return append(events, xrpc.Event{Cursor: 1000, Kind: xrpc.EventMessage, Convo: "three", Seq: 1, ID: "x",
				Sender: "y"})
		}, Broken, "the message at seq 1 comes to one who is not in the convo"},
		"others' roster": {func(events []xrpc.Event) []xrpc.Event {
			return append(events, xrpc.Event{Cursor: 1000, Kind: xrpc.EventMembership, Convo: "three",
				DID: xrpctest.Other.String(), Change: "left"})
		}, Broken, "comes to one who is not in the convo"},
		"a joining that never was": {func(events []xrpc.Event) []xrpc.Event {
			return append(events, xrpc.Event{Cursor: 1000, Kind: xrpc.EventMembership, Convo: "three",
				DID: xrpctest.Listener.String(), Change: "joined"})
		}, Broken, "it was never in this convo"},
		"the commit that added it": {func(events []xrpc.Event) []xrpc.Event {
			return slices.Insert(events, 4,
				xrpc.Event{Cursor: events[3].Cursor + 1, Kind: xrpc.EventCommit, Convo: "two", Seq: 2, Sender: "y"})
		}, Broken, "the commit at seq 2 is from before it joined, at 2"},
		"a change before its commit": {func(events []xrpc.Event) []xrpc.Event {
			events[7], events[8] = events[8], events[7]
			events[7].Cursor, events[8].Cursor = events[8].Cursor, events[7].Cursor
			return events
		}, Lost, "did:plc:listener removed when the log ended at seq 4, and seq 3 was the last it saw"},
		"another's Welcome": {func(events []xrpc.Event) []xrpc.Event {
			events[4].Device = "another"
			return events
		}, Broken, "a welcome event of another account's device another"},
		"other bytes": {func(events []xrpc.Event) []xrpc.Event {
			events[2].Body = []byte("forged")
			return events
		}, Broken, "seq 2 is not what was written there"},
		"another sender": {func(events []xrpc.Event) []xrpc.Event {
			events[1].Sender = xrpctest.Listener.String()
			return events
		}, Broken, "seq 1 is not what was written there"},
		"a message of nobody": {func(events []xrpc.Event) []xrpc.Event {
			return append(events, xrpc.Event{Cursor: 1000, Kind: xrpc.EventMessage, Convo: "one", Seq: 4, ID: "x", Sender: "y"})
		}, Broken, "its log ends at seq 3, and it saw up to 4"},
		"too old": {func(events []xrpc.Event) []xrpc.Event {
			return slices.Insert(events, 0, xrpc.Event{Kind: xrpc.EventInfo, Name: "OutdatedCursor"})
		}, Broken, "OutdatedCursor, and nothing is too old"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, events := soundStream(t)
			found, _ := judged(c, tt.seed(events))
			if !slices.ContainsFunc(found,
				func(v Violation) bool { return v.Kind == tt.kind && strings.Contains(v.What, tt.want) }) {
				t.Errorf("want a %s with %q, got %v", tt.kind, tt.want, found)
			}
		})
	}
}

// E3: after OutdatedCursor a subscriber reads its convos. The stream then goes on with events that
// it has read and events that are new. A gap after these events is still a gap.
func TestObserverReadsAgain(t *testing.T) {
	t.Parallel()
	entry := func(cursor, seq int64, convo string) xrpc.Event {
		return xrpc.Event{Cursor: cursor, Kind: xrpc.EventMessage, Convo: convo, Seq: seq, ID: fmt.Sprint(seq), Sender: "y"}
	}
	v := NewObserver("vigilant", xrpctest.Listener)
	v.Observe(xrpc.Event{Cursor: 1, Kind: xrpc.EventMembership, Convo: "one", DID: xrpctest.Listener.String(),
		Change: "joined"})
	v.Observe(entry(10, 1, "one"))
	v.Observe(entry(20, 2, "one")) // lost
	v.Resume(false)
	v.ReadAgain(map[string]int64{"one": 3})
	if cursor, ok := v.Resume(false); cursor != 0 || !ok {
		t.Errorf("before the first event it goes on at %d, %t", cursor, ok)
	}
	joined := xrpc.Event{Cursor: 5, Kind: xrpc.EventMembership, Convo: "one", DID: xrpctest.Listener.String(),
		Change: "joined"}
	for _, h := range []xrpc.Event{joined, entry(15, 2, "one"), entry(16, 7, "gone"), entry(17, 3, "one"),
		entry(18, 4, "one")} {
		v.Observe(h)
	}
	if len(v.found) > 0 {
		t.Errorf("found %v", v.found)
	}
	if cursor, _ := v.Resume(false); cursor != 19 {
		t.Errorf("it goes on at %d", cursor)
	}
	v.Observe(entry(30, 6, "one"))
	if len(v.found) != 1 || v.found[0].Kind != Lost {
		t.Errorf("found %v", v.found)
	}
}

// soundEvents is how many events a correct stream has.
const soundEvents = 11

func TestObserverResumes(t *testing.T) {
	t.Parallel()
	c, events := soundStream(t)
	v := NewObserver("vigilant", xrpctest.Listener, "phone")
	if _, ok := v.Resume(true); ok {
		t.Error("a cursor before any event")
	}
	for _, h := range events[:3] {
		v.Observe(h)
	}
	if cursor, ok := v.Resume(true); !ok || cursor != 30 {
		t.Errorf("Resume(true) = %d, %t, want 30", cursor, ok)
	}
	if v.Observe(events[2]) {
		t.Error("the event at the seam is called new")
	}
	v.Observe(events[3])
	if cursor, ok := v.Resume(false); !ok || cursor != 41 {
		t.Errorf("Resume(false) = %d, %t, want 41", cursor, ok)
	}
	for _, h := range events[4:] {
		v.Observe(h)
	}
	if found := v.Judge(c); len(found) > 0 {
		t.Errorf("a sound stream on three connections: %v", found)
	}

	for name, tt := range map[string]struct {
		again bool
		next  []xrpc.Event
		kind  ViolationKind
		want  string
	}{
		"not sent again":       {true, events[3:4], Lost, "asked from cursor 30 on, it begins with 40"},
		"sent again unasked":   {false, events[2:3], Duplicated, "cursor 30 (message) comes after 30"},
		"below what was asked": {false, events[1:2], Duplicated, "cursor 20 (message) comes after 30"},
		"sent again twice":     {true, []xrpc.Event{events[2], events[2]}, Duplicated, "cursor 30 (message) comes after 30"},
		"another at the seam": {true, []xrpc.Event{{Cursor: 30, Kind: xrpc.EventCommit, Convo: "one", Seq: 2}}, Broken,
			"cursor 30 was a message and is a commit"},
	} {
		v := NewObserver("vigilant", xrpctest.Listener, "phone")
		for _, h := range events[:3] {
			v.Observe(h)
		}
		v.Resume(tt.again)
		for _, h := range tt.next {
			v.Observe(h)
		}
		if !slices.ContainsFunc(v.found,
			func(v Violation) bool { return v.Kind == tt.kind && strings.Contains(v.What, tt.want) }) {
			t.Errorf("%s: want a %s with %q, got %v", name, tt.kind, tt.want, v.found)
		}
	}
}
