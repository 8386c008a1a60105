package console

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/push"
	"mlsd/internal/worker"
	"mlsd/operator"
)

// pageRows is how many rows a list shows at a time.
const pageRows = 50

// queuesPage is what the page Queues shows.
type queuesPage struct {
	Waiting, Dead         []push.ListedJob
	NextWaiting, NextDead string // queries for the next rows; "" if there are none
	Services              operator.Services
	Stored                storedFacts
	Backlog, Oldest       string // of the push jobs, as a sweep has last counted them
	Workers               []worker.Round
}

// queues shows waiting work: push jobs, dead push jobs, other services, events, and the workers'
// rounds.
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
		if p.Services, err = operator.ReadServices(ctx, tx, pageRows); err != nil {
			return err
		}
		p.Dead, err = push.DeadLetters(ctx, tx, place(r.Query.Get("before"), push.Place{At: r.Now.Add(time.Minute)}),
			pageRows)
		return err
	})
	p.NextWaiting = next(p.Waiting,
		func(last push.ListedJob) string { return "?after=" + placeText(last.NextAttempt, last.ID) })
	p.NextDead = next(p.Dead, func(last push.ListedJob) string { return "?before=" + placeText(*last.EndedAt, last.ID) })
	return p, err
}

// next returns the query for the rows that follow a list, or "" if the list is not full.
func next[T any](list []T, query func(last T) string) string {
	if len(list) < pageRows {
		return ""
	}
	return query(list[len(list)-1])
}

// placeText formats a place in a list for the query of a link.
func placeText(at time.Time, id any) string {
	return url.QueryEscape(fmt.Sprint(at.UTC().Format(time.RFC3339Nano), " ", id))
}

// place parses a place in a list. It returns other if the text is not a place.
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
