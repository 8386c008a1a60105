package network

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// Daily budgets of invitations that the services of a registered domain deliver to people who do not
// know the inviter. Who causes an invitation pays for it. An inviter who has claimed the KeyPackage
// here is proven, and has a part of its own. For all other invitations the service alone stands.
// Nobody's budget grows: an accepted invitation is given back.
//
// The services of a domain share its budget, and their accounts cost nothing. So the second half is
// for inviters who have used little: a few busy inviters leave it to the others.
const (
	provenPerDay   = 80
	sharedPerDay   = 40 // of the 80: for every inviter
	littlePerDay   = 2  // what an inviter can use of the other 40
	unprovenPerDay = 20
	inviterPerDay  = 10 // of the 80
	declinedTakes  = 3
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

// spend counts one invitation. If more than most are used then, it also returns how long to wait.
func (b budget) spend(most int64) (used float64, wait time.Duration) {
	used = max(0, b.used-float64(b.perDay)*b.since.Seconds()/day.Seconds()) + 1
	if over := used - float64(most); over > 0 {
		wait = max(time.Second, time.Duration(over/float64(b.perDay)*float64(day)))
	}
	return used, wait
}

// spend counts one invitation in the budgets of its cause. It returns what is used then, or how long
// to wait.
func spend(budgets []budget) (used []float64, wait time.Duration) {
	for _, b := range budgets {
		n, longer := b.spend(b.perDay)
		used, wait = append(used, n), max(wait, longer)
	}
	if len(budgets) > 1 && used[1] > littlePerDay { // of a domain and a proven inviter
		_, longer := budgets[0].spend(sharedPerDay)
		wait = max(wait, longer)
	}
	return used, wait
}

// cause is who causes an invitation.
type cause struct {
	domain  string // of the service
	inviter syntax.DID
	proven  bool
}

// budgets returns the budgets that count an invitation, in the order of their subjects, in which they
// are locked. The last one belongs to the narrowest cause.
func (c cause) budgets() (subjects []string, perDay []int64) {
	if !c.proven {
		return []string{"unproven:" + c.domain}, []int64{unprovenPerDay}
	}
	return []string{"domain:" + c.domain, "inviter:" + c.inviter.String()}, []int64{provenPerDay, inviterPerDay}
}

// spend counts an invitation. Errors: *BudgetError, errors of the database.
func (c cause) spend(ctx context.Context, tx pgx.Tx) error {
	all, perDay := c.budgets()
	_, err := tx.Exec(ctx, `
		INSERT INTO invitation_budgets (subject, per_day, used, counted_at)
		SELECT subject, per_day, 0, clock_timestamp() FROM unnest($1::text[], $2::bigint[]) AS s (subject, per_day)
		ORDER BY subject
		ON CONFLICT (subject) DO UPDATE SET per_day = EXCLUDED.per_day`, all, perDay)
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
	used, wait := spend(budgets)
	if wait > 0 {
		return &BudgetError{wait}
	}
	_, err = tx.Exec(ctx, `
		UPDATE invitation_budgets b SET used = s.used, counted_at = clock_timestamp()
		FROM unnest($1::text[], $2::double precision[]) AS s (subject, used) WHERE b.subject = s.subject`, all, used)
	return errs.Wrap(err, "count an invitation")
}

// answered changes the budgets after a person's first answer to an invitation of the last day. An
// accepted invitation is given back. A declined one takes more, of the narrowest cause alone.
func (c cause) answered(ctx context.Context, tx pgx.Tx, accepted bool) error {
	subjects, _ := c.budgets()
	change := -1
	if !accepted {
		subjects, change = subjects[len(subjects)-1:], declinedTakes
	}
	_, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT subject FROM invitation_budgets WHERE subject = ANY($1) ORDER BY subject FOR UPDATE
		)
		UPDATE invitation_budgets b SET used = greatest(0, used + $2::int) FROM locked WHERE b.subject = locked.subject`,
		subjects, change)
	return errs.Wrap(err, "change a budget")
}
