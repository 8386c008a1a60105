package operator

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Transition is a row of the audit log.
type Transition struct {
	At      time.Time `json:"at"`
	Entity  string    `json:"entity"`
	ID      string    `json:"id,omitempty"` // of the entity, where it is not what was asked for
	From    string    `json:"from"`
	To      string    `json:"to"`
	Version int64     `json:"version"`
	Actor   string    `json:"actor"`
	Reason  string    `json:"reason"`
	Details string    `json:"details,omitempty"` // what the actor said about it
}

// Trail returns the last transitions of an entity, the newest first: a convo, a Welcome, a
// KeyPackageRef in hex, or "method key" of a reservation.
func Trail(ctx context.Context, tx pgx.Tx, id string, rows int) ([]Transition, error) {
	return list[Transition](ctx, tx, `
		SELECT a.at, a.entity, '', a.from_state, a.to_state, a.version, a.actor, a.reason, coalesce(a.details, '')
		FROM (SELECT entity FROM transitions UNION VALUES ('convo'), ('record')) e
		CROSS JOIN LATERAL (
			SELECT * FROM audit_log WHERE entity = e.entity AND entity_id = $1 ORDER BY at DESC LIMIT $2
		) a
		ORDER BY a.at DESC, a.id DESC LIMIT $2`, id, rows)
}
