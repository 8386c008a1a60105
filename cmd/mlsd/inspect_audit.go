package main

import (
	"context"
	"io"

	"mlsd/operator"
)

type auditReport struct {
	Transitions []transitionCount `json:"transitions"`
}

type transitionCount struct {
	Entity string `json:"entity"`
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
}

type auditTrail struct {
	ID          string                `json:"id"`
	Transitions []operator.Transition `json:"transitions"`
}

// reportAudit lists the last transitions of one entity. Without an entity, it counts the
// transitions of the last hour; all steps of convos' epochs count as one kind.
func reportAudit(ctx context.Context, i inspection) (report, error) {
	if i.entityID != "" {
		return reportTrail(ctx, i)
	}
	found, err := list[transitionCount](ctx, i, `
		SELECT entity, CASE WHEN entity = 'convo' THEN 'epoch' ELSE from_state END, CASE WHEN entity = 'convo' THEN 'next epoch' ELSE to_state END,
			reason, count(*)
		FROM audit_log WHERE at > now() - interval '1 hour' GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4`)
	return auditReport{found}, err
}

func (r auditReport) print(w io.Writer) {
	table(w, "entity | from | to | by | in the last hour", r.Transitions, func(c transitionCount) []any {
		return []any{c.Entity, c.From, c.To, c.Reason, c.Count}
	})
}

func reportTrail(ctx context.Context, i inspection) (report, error) {
	found, err := operator.Trail(ctx, i.tx, i.entityID, i.rows)
	for n := range found {
		found[n].Actor, found[n].Details = i.did(found[n].Actor), i.text(found[n].Details)
	}
	return auditTrail{i.entityID, found}, err
}

func (r auditTrail) print(w io.Writer) {
	table(w, "at (UTC) | entity | from | to | version | actor | by | details", r.Transitions, func(t operator.Transition) []any {
		return []any{clock(t.At), t.Entity, t.From, t.To, t.Version, t.Actor, t.Reason, t.Details}
	})
}
