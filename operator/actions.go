package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Outcomes of an action. An action whose node was killed stays started.
const (
	started = "started"
	done    = "done"
)

// outcomeOf is what the table says about how an action ended.
func outcomeOf(err error) string {
	var refused *Error
	switch {
	case err == nil:
		return done
	case errors.As(err, &refused):
		return "refused: " + refused.Name
	}
	return "failed"
}

// begin records that an operator is about to act. Its row is committed before the first effect.
func begin(ctx context.Context, db *pgxpool.Pool, m Method, c Call) (id int64, err error) {
	err = db.QueryRow(ctx, `
		INSERT INTO admin_actions (at, operator, action, subject, reason, outcome)
		VALUES (clock_timestamp(), $1, $2, $3, $4, $5) RETURNING id`,
		c.Operator, m.Name(), m.subject(c), c.Reason, started).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("record the action: %w", err)
	}
	return id, nil
}

// endTimeout bounds the record of an outcome, which is written even if the client has hung up.
const endTimeout = 5 * time.Second

// end records how an action ended.
func end(ctx context.Context, db *pgxpool.Pool, id int64, failure error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_, err := db.Exec(ctx, `UPDATE admin_actions SET outcome = $2, ended_at = clock_timestamp() WHERE id = $1`, id, outcomeOf(failure))
	if err != nil {
		return fmt.Errorf("record the outcome: %w", err)
	}
	return nil
}
