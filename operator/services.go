package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

var inspectServices = question("services",
	"budgets of services that deliver invitations, and homes that have not taken ours (MLSD_SERVICES chooses services)",
	func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		return ReadServices(ctx, tx, c.rows())
	})

// Services lists other services that invite people of this service, and services whose people this
// one invites.
type Services struct {
	Budgets []ServiceBudget `json:"budgets"`
	Homes   []WaitingHome   `json:"homes"`
}

// ServiceBudget is how many invitations a service, or all services of a registered domain, may
// deliver to people who share no convo with the inviter.
type ServiceBudget struct {
	Subject string    `json:"subject"` // a DID, or domain:NAME
	Used    int64     `json:"used"`    // how much of today's budget is used now
	PerDay  int64     `json:"perDay"`  // it grows with accepted invitations, and shrinks with declined ones
	Share   float64   `json:"share"`   // part that is used: 1 is all of it
	Last    time.Time `json:"last"`    // last time that the budget was counted
}

func (b ServiceBudget) cells() []any {
	return []any{b.Subject, b.Used, b.PerDay, fmt.Sprintf("%.0f%%", 100*b.Share), clock(b.Last)}
}

// WaitingHome is a service that has not accepted this service's invitations yet.
type WaitingHome struct {
	Service       string  `json:"service"`
	Waiting       int64   `json:"waiting"`
	OldestSeconds float64 `json:"oldestSeconds" text:"oldest"`
	Attempts      int64   `json:"attempts"` // the most attempts of one invitation
	LastError     string  `json:"lastError"`
}

// ReadServices lists the budgets with the highest used share, and the homes with the most waiting
// invitations.
func ReadServices(ctx context.Context, tx pgx.Tx, rows int) (s Services, err error) {
	s.Budgets, err = list[ServiceBudget](ctx, tx, `
		SELECT subject, ceil(now_used)::bigint, per_day, now_used / per_day, counted_at
		FROM invitation_budgets CROSS JOIN LATERAL (
			SELECT greatest(0, used - per_day * extract(epoch FROM now() - counted_at)::float8 / 86400) AS now_used
		) AS u
		ORDER BY 4 DESC, counted_at DESC, subject LIMIT $1`, rows)
	if err != nil {
		return s, err
	}
	s.Homes, err = list[WaitingHome](ctx, tx, `
		SELECT service, count(*), extract(epoch FROM now() - min(queued_at))::float8, max(attempts),
			coalesce(max(last_error), '')
		FROM sent_invitations WHERE state IN ('pending', 'sending') AND attempts > 0
		GROUP BY service ORDER BY 2 DESC, service LIMIT $1`, rows)
	return s, err
}
