package outbox

import (
	_ "embed"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Stream is what a node knows of the stream of events.
type Stream struct {
	Node uuid.UUID // id of the node
	Head int64     // the newest place that it has read
}

// EventsChannel is the channel of NOTIFY that says how far the stream goes.
const EventsChannel = "mlsd_events"

// placesSince is the schema version whose builds know that not only the sequencer gives places.
const placesSince = 3

//go:embed place.sql
var place string

// QueuePlace adds to the pipeline of its transaction the event of a message, which the statement
// before it may have appended to a convo: kind, and bytes of the body. If the message was appended
// and has got a place in the stream at once, placed is called with that place. Otherwise the event
// waits for the sequencer, or there is no message.
func QueuePlace(batch *pgx.Batch, known Stream, convo uuid.UUID, kind Kind, size int, placed func(int64)) {
	batch.Queue(place, convo, int16(kind), int32(size), known.Node, known.Head, placesSince, EventsChannel).
		Query(func(rows pgx.Rows) error {
			var head int64
			_, err := pgx.ForEachRow(rows, []any{&head, nil}, func() error { placed(head); return nil })
			return err
		})
}
