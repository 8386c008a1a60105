package console

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/reports"
	"mlsd/operator"
)

// reportsPage is what the page Reports shows: the queue, or one report.
type reportsPage struct {
	Report  *reports.Listed      // nil means that the page shows the queue
	Convo   *operator.ConvoState // the convo of the report; nil if it was deleted
	Members []operator.Member

	Open, Closed         []reports.Listed
	NextOpen, NextClosed string // queries for the next rows; "" if there are none
}

// reports shows the reports of abuse. The console never shows the content of a report: it is
// sealed, and the server does not have the key.
func (c *Console) reports(ctx context.Context, r *Request) (any, error) {
	if asked := strings.TrimSpace(r.Query.Get("id")); asked != "" {
		return c.report(ctx, asked)
	}
	var p reportsPage
	err := c.read(ctx, func(tx pgx.Tx) (err error) {
		if p.Open, err = reports.Queue(ctx, tx, idOr(r.Query.Get("after"), uuid.Nil), pageRows); err != nil {
			return err
		}
		p.Closed, err = reports.Past(ctx, tx, idOr(r.Query.Get("before"), uuid.Max), pageRows)
		return err
	})
	p.NextOpen = next(p.Open, func(last reports.Listed) string { return "?after=" + last.ID.String() })
	p.NextClosed = next(p.Closed, func(last reports.Listed) string { return "?before=" + last.ID.String() })
	return p, err
}

// report shows one report, and the people on whom an operator can act.
func (c *Console) report(ctx context.Context, asked string) (any, error) {
	id, err := uuid.Parse(asked)
	if err != nil {
		return nil, operator.BadRequest("this is no id of a report")
	}
	var p reportsPage
	err = c.read(ctx, func(tx pgx.Tx) error {
		report, err := reports.Get(ctx, tx, id)
		if err != nil {
			return err
		}
		p.Report = &report
		if p.Convo, err = operator.ReadConvo(ctx, tx, report.Convo); err != nil {
			return err
		}
		p.Members, err = operator.Members(ctx, tx, report.Convo, pageRows)
		return err
	})
	return p, err
}

// idOr parses an id. It returns other if the text is not an id.
func idOr(text string, other uuid.UUID) uuid.UUID {
	id, err := uuid.Parse(text)
	if err != nil {
		return other
	}
	return id
}
