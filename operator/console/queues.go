package console

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/push"
	"mlsd/internal/worker"
)

// pageRows is how many rows a list shows at a time.
const pageRows = 50

// queuesPage is what the page Queues shows.
type queuesPage struct {
	Waiting, Dead         []push.ListedJob
	NextWaiting, NextDead string // the query of the next rows; "": there are none
	Stored                storedFacts
	Backlog, Oldest       string // of the push jobs, as the sweep has counted them
	Workers               []worker.Round
}

// queues shows what waits: push jobs, dead ones, events, and the workers' rounds.
func (c *Console) queues(ctx context.Context, r *Request) (any, error) {
	last := c.history.newest()
	p := queuesPage{
		Stored: c.stored.read(ctx), Workers: c.Rounds.List(),
		Backlog: count(last.sum(pushBacklog, every)), Oldest: seconds(last.sum(pushOldest, every)),
	}
	err := c.read(ctx, func(tx pgx.Tx) (err error) {
		if p.Waiting, err = push.Waiting(ctx, tx, place(r.Query.Get("after"), push.Place{}), pageRows); err != nil {
			return err
		}
		p.Dead, err = push.DeadLetters(ctx, tx, place(r.Query.Get("before"), push.Place{At: r.Now.Add(time.Minute)}), pageRows)
		return err
	})
	if n := len(p.Waiting); n == pageRows {
		p.NextWaiting = "?after=" + placeText(p.Waiting[n-1].NextAttempt, p.Waiting[n-1].ID)
	}
	if n := len(p.Dead); n == pageRows {
		p.NextDead = "?before=" + placeText(*p.Dead[n-1].EndedAt, p.Dead[n-1].ID)
	}
	return p, err
}

// placeText writes a place in a list for the query of a link.
func placeText(at time.Time, id uuid.UUID) string {
	return url.QueryEscape(at.UTC().Format(time.RFC3339Nano) + " " + id.String())
}

// place reads a place in a list, or returns another if the text is none.
func place(text string, other push.Place) push.Place {
	at, id, _ := strings.Cut(text, " ")
	when, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return other
	}
	which, err := uuid.Parse(id)
	if err != nil {
		return other
	}
	return push.Place{At: when, ID: which}
}
