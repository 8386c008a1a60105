package operator

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
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
	return id, errs.Wrap(err, "record the action")
}

// endTimeout bounds the record of an outcome, which is written even if the client has hung up.
const endTimeout = 5 * time.Second

// end records how an action ended.
func end(ctx context.Context, db *pgxpool.Pool, id int64, failure error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_, err := db.Exec(ctx, `UPDATE admin_actions SET outcome = $2, ended_at = clock_timestamp() WHERE id = $1`, id,
		outcomeOf(failure))
	return errs.Wrap(err, "record the outcome")
}

var inspectActions = question("actions", "what operators have done, to SUBJECT or at all",
	func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		found, err := Actions(ctx, tx, c.Params["subject"], 0, c.rows())
		return ActionList{found}, err
	}, Param{Name: "subject", Usage: "a DID or the id of a convo", Optional: true, Place: true})

// ActionList is what operators have done, the newest first.
type ActionList struct {
	Actions []Action `json:"actions"`
}

// Action is a row of admin_actions: something that an operator has done.
type Action struct {
	ID       int64      `json:"-" text:"-"`
	At       time.Time  `json:"at" text:"at (UTC)"`
	Operator string     `json:"operator"`
	Action   string     `json:"action"`
	Subject  string     `json:"subject"`
	Reason   string     `json:"reason"`
	Outcome  string     `json:"outcome"`
	EndedAt  *time.Time `json:"endedAt,omitempty" text:"-"`
}

// Actions returns actions, the newest first: all, or those of a subject, with ids below before, or the
// newest if before is 0. The subject of an action begins with the DID or the id of the convo.
func Actions(ctx context.Context, tx pgx.Tx, subject string, before int64, rows int) ([]Action, error) {
	return list[Action](ctx, tx, `
		SELECT id, at, operator, action, subject, reason, outcome, ended_at FROM admin_actions
		WHERE ($1 = '' OR subject = $1 OR starts_with(subject, $1 || ' ')) AND ($2 = 0 OR id < $2)
		ORDER BY id DESC LIMIT $3`, subject, before, rows)
}
