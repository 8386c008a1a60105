package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Action is a row of admin_actions: something that an operator has done.
type Action struct {
	ID       int64
	At       time.Time
	Operator string
	Action   string
	Subject  string
	Reason   string
	Outcome  string
	EndedAt  *time.Time
}

// Actions returns actions, the newest first: those with ids below before, or the newest if before
// is 0.
func Actions(ctx context.Context, tx pgx.Tx, before int64, limit int) ([]Action, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, at, operator, action, subject, reason, outcome, ended_at FROM admin_actions
		WHERE $1 = 0 OR id < $1 ORDER BY id DESC LIMIT $2`, before, limit)
	if err != nil {
		return nil, fmt.Errorf("list the actions: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Action])
}
