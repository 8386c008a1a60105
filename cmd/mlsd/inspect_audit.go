package main

import (
	"context"
	"io"
	"time"
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
	ID          string       `json:"id"`
	Transitions []transition `json:"transitions"`
}

type transition struct {
	At      time.Time `json:"at"`
	Entity  string    `json:"entity"`
	From    string    `json:"from"`
	To      string    `json:"to"`
	Version int64     `json:"version"`
	Actor   string    `json:"actor"`
	Reason  string    `json:"reason"`
	Details string    `json:"details,omitempty"` // what the actor said about it
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

// reportTrail lists what happened to an ID: that of a convo or Welcome, a KeyPackageRef in hex, or
// "method key" of a reservation.
func reportTrail(ctx context.Context, i inspection) (report, error) {
	found, err := list[transition](ctx, i, `
		SELECT a.at, a.entity, a.from_state, a.to_state, a.version, a.actor, a.reason, coalesce(a.details, '')
		FROM (SELECT entity FROM transitions UNION VALUES ('convo'), ('record')) e
		CROSS JOIN LATERAL (
			SELECT * FROM audit_log WHERE entity = e.entity AND entity_id = $1 ORDER BY at DESC LIMIT $2
		) a
		ORDER BY a.at DESC, a.id DESC LIMIT $2`, i.entityID, i.rows)
	for n := range found {
		found[n].Actor, found[n].Details = i.did(found[n].Actor), i.text(found[n].Details)
	}
	return auditTrail{i.entityID, found}, err
}

func (r auditTrail) print(w io.Writer) {
	table(w, "at (UTC) | entity | from | to | version | actor | by | details", r.Transitions, func(t transition) []any {
		return []any{t.At.UTC().Format("2006-01-02 15:04:05.000"), t.Entity, t.From, t.To, t.Version, t.Actor, t.Reason, t.Details}
	})
}
