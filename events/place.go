package events

import (
	_ "embed"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/outbox"
)

// placesSince is the schema version whose builds know that not only the sequencer gives places.
const placesSince = 3

//go:embed place.sql
var place string

// Stream is a node's part of the stream, as the log of messages uses it.
type Stream struct {
	Hub       *Hub
	Sequencer *Sequencer
}

// QueuePlace implements messages.Stream.
func (s Stream) QueuePlace(batch *pgx.Batch, convo uuid.UUID, kind outbox.Kind, size int, placed func(int64)) {
	batch.Queue(place, convo, int16(kind), int32(size), s.Sequencer.self(), s.Hub.Head(), placesSince, eventsChannel).
		Query(func(rows pgx.Rows) error {
			var at int64
			_, err := pgx.ForEachRow(rows, []any{&at, nil}, func() error { placed(at); return nil })
			return err
		})
}

// Placed implements messages.Stream.
func (s Stream) Placed(place int64) {
	s.Sequencer.metrics.Sequenced(1, 0)
	s.grown(place)
}

// grown says that the stream has events up to a place.
func (s Stream) grown(place int64) {
	s.Hub.Grown(place)
	s.Sequencer.seePlace(place)
}

// Wake implements messages.Stream.
func (s Stream) Wake() { s.Sequencer.Wake() }
