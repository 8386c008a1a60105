package convos

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// Move is a move of a cursor and its outcome.
type Move struct {
	Convo             uuid.UUID
	Reader            syntax.DID
	Seq, Delivered    int64
	Status            string
	Cursor            int64
	DeliveredAt       int64 // how far the device is said to be
	HasMoved, IsShown bool
}

// UpdateRead is Update of a client that reports only what it has read.
func (c *Cursors) UpdateRead(ctx context.Context, convo uuid.UUID, reader syntax.DID, seq int64) (int64, error) {
	at, err := c.Update(ctx, convo, reader, Cursor{Read: seq})
	return at.Read, err
}

// Together makes moves in one transaction, without waiting for locks.
func (c *Cursors) Together(ctx context.Context, moves ...*Move) error {
	batch := make([]move, len(moves))
	for i, m := range moves {
		batch[i] = move{m.Convo, m.Reader, m.Seq, m.Delivered}
	}
	results, err := c.moveTogether(ctx, batch)
	for i, r := range results {
		moves[i].Status, moves[i].Cursor, moves[i].DeliveredAt = r.status, r.cursor.Read, r.cursor.Delivered
		moves[i].HasMoved, moves[i].IsShown = r.hasMoved, r.shared
	}
	return err
}

// Statement is moveCursors.
var Statement = moveCursors
