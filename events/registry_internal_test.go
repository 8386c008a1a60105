package events

import (
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/internal/limit"
	"mlsd/outbox"
)

// A subscription that becomes live gets the events that the hub has handed out since it read the
// table: its person's, and those of the person's convos, also of one that the person has joined since.
func TestNothingIsMissedBeforeLive(t *testing.T) {
	t.Parallel()
	const alice, bob syntax.DID = "did:plc:alice", "did:plc:bob"
	mine, others := uuid.New(), uuid.New()
	r := &registry{
		size: bufferBytes, now: time.Now, large: &limit.Queue{},
		all: map[*buffer]struct{}{}, byDID: map[syntax.DID][]*buffer{}, shares: map[syntax.DID]*share{},
		byConvo: map[uuid.UUID]map[*buffer]struct{}{}, shared: map[int64]weak.Pointer[Event]{},
	}
	b := &buffer{did: alice, place: 1, ready: make(chan struct{}, 1)} // it has read event 1
	if err := r.add(b); err != nil {
		t.Fatal(err)
	}
	for i, e := range []*Event{
		{Kind: outbox.Application, ConvoID: mine},
		{Kind: outbox.Application, ConvoID: others},
		{Kind: outbox.Application, ConvoID: mine},
		{Kind: outbox.Membership, ConvoID: others, DID: alice, Detail: outbox.Detail{Change: outbox.Joined}},
		{Kind: outbox.Application, ConvoID: others},
		{Kind: outbox.Welcome, ConvoID: others, DID: bob},
		{Kind: outbox.Welcome, ConvoID: others, DID: alice},
	} {
		e.StreamSeq = int64(i + 1)
		r.publish([]*Event{e})
	}
	if !r.attach(b, map[uuid.UUID]struct{}{mine: {}}) {
		t.Fatal("it does not become live")
	}
	r.publish([]*Event{{StreamSeq: 8, Kind: outbox.Application, ConvoID: others}})
	var got []int64
	for _, e := range b.queue {
		got = append(got, e.StreamSeq)
	}
	if want := []int64{3, 4, 5, 7, 8}; !slices.Equal(got, want) {
		t.Errorf("it gets %v, want %v", got, want)
	}
}
