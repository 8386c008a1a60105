package convos

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// Move is a move of a cursor and its outcome.
type Move struct {
	Convo  uuid.UUID
	Reader syntax.DID
	Seq    int64
	Status string
	Cursor int64
}

// Together makes moves in one transaction, without waiting for locks.
func (c *Cursors) Together(ctx context.Context, moves ...*Move) error {
	batch := make([]move, len(moves))
	for i, m := range moves {
		batch[i] = move{m.Convo, m.Reader, m.Seq}
	}
	results, err := c.moveTogether(ctx, batch)
	for i, r := range results {
		moves[i].Status, moves[i].Cursor = r.status, r.cursor
	}
	return err
}

// Statement is moveCursors.
var Statement = moveCursors
