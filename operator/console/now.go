package console

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// nowPage is what the page Now shows.
type nowPage struct {
	Drawings []drawing
	Stored   storedFacts
	Node     uuid.UUID // this one
	Leads    bool      // this node leads the sequencer
}

// now shows what the node does at this moment, and did in the last hour.
func (c *Console) now(ctx context.Context, r *Request) (any, error) {
	live, err := c.history.live(time.Now())
	if err != nil {
		return nil, err
	}
	last := c.history.newest()
	return nowPage{
		Drawings: draw(c.history.charts, c.history.hour(), live),
		Stored:   c.stored.read(ctx),
		Node:     c.NodeID(),
		Leads:    last.sum(leader, every) > 0,
	}, nil
}
