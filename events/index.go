package events

import (
	"context"
	_ "embed" // of index_events.sql
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// IndexInterval is how often a node looks whether events are to be indexed.
	IndexInterval = 5 * time.Second

	indexPart = 1 << 13       // smallest number of places of the stream that one transaction indexes
	indexSpan = 2 * indexPart // largest distance between the first and the last place of a row
	indexRow  = 256           // largest number of messages in a row
)

//go:embed index_events.sql
var indexEvents string

// Index writes the table convo_events, which says where the messages of each convo are in the
// stream. Messages that were written together share a row of events, and no index leads from their
// convos to that row. Without convo_events, a reader that is behind would have to read the messages
// of all convos to find its own. So some seconds later, Index adds rows with many messages of one
// convo each.
//
// Every node runs an Index, and one works at a time. A Hub remembers the events that are not
// indexed yet, so no reader waits for the index.
type Index struct {
	db        *pgxpool.Pool
	part, row int // indexPart and indexRow; smaller in tests
}

// NewIndex returns an index.
func NewIndex(db *pgxpool.Pool) *Index { return &Index{db: db, part: indexPart, row: indexRow} }

// RunOnce indexes the events of the stream, but leaves out the newest day if it has fewer than
// indexPart places.
func (x *Index) RunOnce(ctx context.Context) error {
	for {
		// Every node asks this again and again, so the statement reads no partition.
		var due bool
		err := x.db.QueryRow(ctx, `
			SELECT s.head - e.last >= $1 OR e.last < (SELECT coalesce(max(first_seq) - 1, 0) FROM event_days) FROM stream s,
				convo_events_end e`, x.part).Scan(&due)
		if err != nil {
			return fmt.Errorf("look for events that are not indexed: %w", err)
		}
		if !due {
			return nil
		}
		tag, err := x.db.Exec(ctx, indexEvents, x.part, indexSpan, x.row)
		if err != nil {
			return fmt.Errorf("index the events by their convos: %w", err)
		}
		if tag.RowsAffected() == 0 { // another node is indexing
			return nil
		}
	}
}
