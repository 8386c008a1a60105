package network

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// Daily budgets of invitations that a service delivers to people who do not know the inviter.
// Anybody can run a service, and a domain can have any number of services.
const (
	firstBudget       = 100 // for a service
	firstDomainBudget = 200 // for all services of a registered domain
	minBudget         = 10
	maxBudget         = 100_000

	acceptedAdds  = 2
	declinedTakes = 5
)

const day = 24 * time.Hour

// BudgetError says that a service, or its domain, has used up its budget of invitations.
type BudgetError struct{ After time.Duration }

func (e *BudgetError) Error() string {
	return "this service takes no more invitations to people who do not know the inviter now; deliver it again later"
}

// budget is how many invitations a subject can deliver in a day, and how many it has used. Every
// second, used decreases by a day's share of perDay.
type budget struct {
	subject string
	perDay  int64
	used    float64
	since   time.Duration // time since used was stored
}

// spend counts one invitation. If the budget is used up, it returns how long to wait.
func (b budget) spend() (used float64, wait time.Duration) {
	used = max(0, b.used-float64(b.perDay)*b.since.Seconds()/day.Seconds()) + 1
	if over := used - float64(b.perDay); over > 0 {
		return b.used, max(time.Second, time.Duration(over/float64(b.perDay)*float64(day)))
	}
	return used, 0
}

// subjects returns the subjects whose budgets count an invitation of a service, in the order in
// which they are locked.
func subjects(service syntax.DID, domain string) []string {
	s := []string{service.String(), "domain:" + domain}
	slices.Sort(s)
	return s
}

// spend counts an invitation for its service and its domain. Errors: *BudgetError, errors of the
// database.
func spend(ctx context.Context, tx pgx.Tx, p Peer) error {
	all := subjects(p.DID, p.Domain)
	_, err := tx.Exec(ctx, `
		INSERT INTO invitation_budgets (subject, per_day, used, counted_at)
		SELECT subject, CASE WHEN starts_with(subject, 'domain:') THEN $3::bigint ELSE $2::bigint END, 0, clock_timestamp()
		FROM unnest($1::text[]) AS subject ORDER BY subject
		ON CONFLICT DO NOTHING`, all, firstBudget, firstDomainBudget)
	if err != nil {
		return fmt.Errorf("begin a budget: %w", err)
	}
	rows, err := tx.Query(ctx, `
		SELECT subject, per_day, used, clock_timestamp() - counted_at FROM invitation_budgets
		WHERE subject = ANY($1) ORDER BY subject FOR UPDATE`, all)
	if err != nil {
		return fmt.Errorf("read a budget: %w", err)
	}
	budgets, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b budget, err error) {
		return b, row.Scan(&b.subject, &b.perDay, &b.used, &b.since)
	})
	if err != nil {
		return fmt.Errorf("read a budget: %w", err)
	}
	var names []string
	var used []float64
	var longest time.Duration
	for _, b := range budgets {
		n, wait := b.spend()
		longest = max(longest, wait)
		names, used = append(names, b.subject), append(used, n)
	}
	if longest > 0 {
		return &BudgetError{longest}
	}
	_, err = tx.Exec(ctx, `
		UPDATE invitation_budgets b SET used = s.used, counted_at = clock_timestamp()
		FROM unnest($1::text[], $2::double precision[]) AS s (subject, used) WHERE b.subject = s.subject`, names, used)
	return errs.Wrap(err, "count an invitation")
}

// answered changes the budgets of a service and its domain after a person's first answer to an
// invitation.
func answered(ctx context.Context, tx pgx.Tx, service syntax.DID, domain string, accepted bool) error {
	change := -declinedTakes
	if accepted {
		change = acceptedAdds
	}
	_, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT subject FROM invitation_budgets WHERE subject = ANY($1) ORDER BY subject FOR UPDATE
		)
		UPDATE invitation_budgets b SET per_day = greatest($2, least($3, per_day + $4))
		FROM locked WHERE b.subject = locked.subject`, subjects(service, domain), minBudget, maxBudget, change)
	return errs.Wrap(err, "change a budget")
}
