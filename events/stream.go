package events

import (
	"mlsd/outbox"
)

// Stream is a node's part of the stream, as the log of messages uses it (messages.Stream).
type Stream struct {
	Hub       *Hub
	Sequencer *Sequencer
}

// Known returns what this node knows of the stream.
func (s Stream) Known() outbox.Stream {
	known := outbox.Stream{Head: s.Hub.Head()}
	if s.Sequencer.node != nil {
		known.Node = s.Sequencer.node()
	}
	return known
}

// Grown says that the stream may have events up to a place.
func (s Stream) Grown(place int64) { s.Hub.Grown(place) }

// Wake says that the outbox may have grown.
func (s Stream) Wake() { s.Sequencer.Wake() }
