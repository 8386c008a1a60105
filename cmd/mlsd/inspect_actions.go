package main

import (
	"context"
	"io"
	"time"
)

type actionsReport struct {
	Actions []operatorAction `json:"actions"`
}

type operatorAction struct {
	At       time.Time  `json:"at"`
	Operator string     `json:"operator"`
	Action   string     `json:"action"`
	Subject  string     `json:"subject"`
	Reason   string     `json:"reason"`
	Outcome  string     `json:"outcome"`
	EndedAt  *time.Time `json:"endedAt,omitempty"`
}

// reportActions lists what operators have done, the newest first: all, or what they did to a
// subject. The subject of an action begins with the DID or the id of the convo.
func reportActions(ctx context.Context, i inspection) (report, error) {
	found, err := list[operatorAction](ctx, i, `
		SELECT at, operator, action, subject, reason, outcome, ended_at FROM admin_actions
		WHERE $1 = '' OR subject = $1 OR starts_with(subject, $1 || ' ')
		ORDER BY id DESC LIMIT $2`, i.entityID, i.rows)
	for n := range found {
		found[n].Subject, found[n].Reason = i.text(found[n].Subject), i.text(found[n].Reason)
	}
	return actionsReport{found}, err
}

func (r actionsReport) print(w io.Writer) {
	table(w, "at (UTC) | operator | action | subject | reason | outcome", r.Actions, func(a operatorAction) []any {
		return []any{a.At.UTC().Format("2006-01-02 15:04:05"), a.Operator, a.Action, a.Subject, a.Reason, a.Outcome}
	})
}
