package operator

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

var inspectAudit = question("audit", "what was done to the entity ID, or transitions by number", audit,
	Param{Name: "id",
		Usage:    "a convo's or Welcome's id, a KeyPackageRef in hex, a DID, or \"METHOD KEY\" of a reservation",
		Optional: true, Place: true})

// TransitionCounts counts the transitions of the last hour.
type TransitionCounts struct {
	Transitions []TransitionCount `json:"transitions"`
}

// TransitionCount counts transitions of a kind.
type TransitionCount struct {
	Entity string `json:"entity"`
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason" text:"by"`
	Count  int64  `json:"count" text:"in the last hour"`
}

// Trail lists the last transitions of an entity, the newest first.
type Trail struct {
	ID          string       `json:"id" text:"-"`
	Transitions []Transition `json:"transitions"`
}

// Transition is a row of the audit log.
type Transition struct {
	At      time.Time `json:"at" text:"at (UTC)"`
	Entity  string    `json:"entity"`
	ID      string    `json:"id,omitempty" text:"-"` // of the entity, if it is not the one that was asked for
	From    string    `json:"from"`
	To      string    `json:"to"`
	Version int64     `json:"version"`
	Actor   string    `json:"actor"`
	Reason  string    `json:"reason" text:"by"`
	Details string    `json:"details,omitempty"` // what the actor has said about the transition
}

// audit lists the last transitions of one entity. Without an entity, audit counts the transitions
// of the last hour. All steps of convos' epochs count as one kind.
func audit(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
	id := c.Params["id"]
	if id == "" {
		found, err := list[TransitionCount](ctx, tx, `
			SELECT entity, CASE WHEN entity = 'convo' THEN 'epoch' ELSE from_state END,
				CASE WHEN entity = 'convo' THEN 'next epoch' ELSE to_state END, reason, count(*)
			FROM audit_log WHERE at > now() - interval '1 hour' GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4`)
		return TransitionCounts{found}, err
	}
	found, err := list[Transition](ctx, tx, `
		SELECT a.at, a.entity, '', a.from_state, a.to_state, a.version, a.actor, a.reason, coalesce(a.details, '')
		FROM (SELECT entity FROM transitions UNION VALUES ('convo'), ('record'), ('account')) e
		CROSS JOIN LATERAL (
			SELECT * FROM audit_log WHERE entity = e.entity AND entity_id = $1 ORDER BY at DESC LIMIT $2
		) a
		ORDER BY a.at DESC, a.id DESC LIMIT $2`, id, c.rows())
	return Trail{id, found}, err
}
