package operator

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

// Outcomes of an action. If a node is killed during an action, the outcome stays started.
const (
	started = "started"
	done    = "done"
)

// outcomeOf returns the outcome for the table.
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

// begin records that an operator is about to act. The row is committed before the first effect.
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

// ActionList lists what operators have done, the newest first.
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

// Actions returns actions, the newest first: all actions, or the actions on a subject. It returns
// actions with ids below before; 0 means from the newest. The subject of an action begins with the
// DID or the id of the convo.
func Actions(ctx context.Context, tx pgx.Tx, subject string, before int64, rows int) ([]Action, error) {
	return list[Action](ctx, tx, `
		SELECT id, at, operator, action, subject, reason, outcome, ended_at FROM admin_actions
		WHERE ($1 = '' OR subject = $1 OR starts_with(subject, $1 || ' ')) AND ($2 = 0 OR id < $2)
		ORDER BY id DESC LIMIT $3`, subject, before, rows)
}

// EraseActions puts the tombstone of a person into a part of the record of operators' actions.
func EraseActions(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE admin_actions
		SET subject = regexp_replace(subject, $4, $5, 'g'), reason = regexp_replace(reason, $4, $5, 'g'),
			operator = regexp_replace(operator, $4, $5, 'g')
		WHERE ctid >= $1::tid AND ctid < $2::tid
			AND (strpos(subject, $3) > 0 OR strpos(reason, $3) > 0 OR strpos(operator, $3) > 0)`,
		b.From, b.To, p.DID.String(), p.Pattern(), p.Anywhere())
	return tag.RowsAffected(), errs.Wrap(err, "erase a name from the record of actions")
}

// didShow is the action of looking at a page of the console with DIDs in full. It is not a method:
// the console records it.
var didShow = Method{Noun: "did", Verb: "show", Params: []Param{{Name: "page"}}, Write: true}

// RecordShown inserts a row into admin_actions: an operator is about to see DIDs in full. page is
// the address of the page, or the name of something else that shows them. It returns an error if
// operator or reason is missing.
func (s *Service) RecordShown(ctx context.Context, page, operator, reason string) error {
	c, err := didShow.NewCall(map[string]string{"page": page, operatorField: operator, reasonField: reason})
	if err != nil {
		return err
	}
	id, err := begin(ctx, s.c.DB, didShow, c)
	if err != nil {
		return err
	}
	return end(ctx, s.c.DB, id, nil)
}
