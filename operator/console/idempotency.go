package console

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/operator"
)

// idempotencyPage is what the page Idempotency shows.
type idempotencyPage struct {
	// What the form asks for: a request id and a key.
	Request, Key string
	Asked        bool
	Found        []operator.Explanation
	Next         string // query for the next rows; "" if there are none

	Keys       []operator.CallerUse
	Fields     []operator.FieldCount
	Callers    []operator.RefusedUse
	Processing []operator.Reservation
	Kept       []operator.Lifetime
	Exact      bool // Kept is counted, not estimated
}

const (
	// How many requests a page explains at one time.
	explained, explainedOfAccount = 10, 5
	// shownCallers is how many callers and fields the statistics list.
	shownCallers = 15
	// lookBack is how far back the statistics go.
	lookBack = 24 * time.Hour
)

// idempotency shows the results of requests with keys, and explains why a request got its answer.
func (c *Console) idempotency(ctx context.Context, r *Request) (any, error) {
	p := idempotencyPage{Request: strings.TrimSpace(r.Query.Get("request")), Key: strings.TrimSpace(r.Query.Get("key"))}
	of := operator.RequestsOf{Request: p.Request, Key: p.Key}
	if r.Query.Get("did") != "" {
		did, err := r.ReadDID("did")
		if err != nil {
			return nil, err
		}
		of.Caller = did.String()
	}
	if convo, err := uuid.Parse(r.Query.Get("convo")); err == nil {
		of.Convo = &convo
	}
	p.Asked = of != (operator.RequestsOf{})
	err := c.read(ctx, func(tx pgx.Tx) (err error) {
		if p.Asked {
			p.Found, p.Next, err = explain(ctx, tx, r, of, explained)
			return err
		}
		return c.keyFigures(ctx, tx, &p)
	})
	return p, err
}

// keyFigures reads the statistics.
func (c *Console) keyFigures(ctx context.Context, tx pgx.Tx, p *idempotencyPage) (err error) {
	if p.Keys, err = operator.Keys(ctx, tx, lookBack); err != nil {
		return err
	}
	if p.Fields, err = operator.ConflictFields(ctx, tx, lookBack, shownCallers); err != nil {
		return err
	}
	if p.Callers, err = operator.MostRefused(ctx, tx, lookBack, shownCallers); err != nil {
		return err
	}
	if p.Processing, err = operator.Processing(ctx, tx, pageRows); err != nil {
		return err
	}
	percent, err := operator.Sampled(ctx, tx, "idempotency_keys")
	if err != nil {
		return err
	}
	p.Exact = percent == operator.WholeTable
	p.Kept, err = operator.ReadLifetimes(ctx, tx, c.Lifetimes, percent)
	p.Kept = slices.DeleteFunc(p.Kept, func(l operator.Lifetime) bool { return l.Records == 0 })
	return err
}

// explain reads a part of the requests, and returns the query for the next part.
func explain(ctx context.Context, tx pgx.Tx, r *Request, of operator.RequestsOf,
	rows int) (found []operator.Explanation, next string, err error) {
	of.Rows = rows
	if of.Before, err = strconv.ParseInt(r.Query.Get("before"), 10, 64); err != nil || of.Before < 0 {
		of.Before = 0
	}
	found, err = operator.Explain(ctx, tx, of)
	if len(found) == rows {
		query := url.Values{}
		for name := range r.Query {
			query.Set(name, r.Query.Get(name))
		}
		if of.Caller != "" {
			query.Set("did", r.Ref(of.Caller))
		}
		query.Set("before", fmt.Sprint(found[rows-1].ID))
		next = "?" + query.Encode()
	}
	return found, next, err
}
