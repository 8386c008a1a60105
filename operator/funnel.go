package operator

import (
	"context"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Funnel is how far Welcomes have come.
type Funnel struct {
	Steps   []FunnelStep
	Reasons []ErrorCount // what devices said of failed joins
	Exact   bool         // false: the table is large, and the figures are estimates
}

// FunnelStep are the Welcomes in a state.
type FunnelStep struct {
	State string
	Count int64
	// Ages in seconds: of available Welcomes since their commit, of those in flight since they were
	// fetched, of consumed ones from the commit to the joining.
	P50, P95, Oldest float64
	Retried          int64 // fetched more than once
	Failures         int64 // failed joins
}

// funnelReasons is how many reasons of failures a funnel lists.
const funnelReasons = 10

// ReadFunnel counts Welcomes by state.
func ReadFunnel(ctx context.Context, tx pgx.Tx) (f Funnel, err error) {
	percent, err := sampled(ctx, tx, "welcomes")
	if err != nil {
		return f, err
	}
	f.Exact = percent == 100
	f.Steps, err = list[FunnelStep](ctx, tx, `
		SELECT state, count(*), percentile_disc(0.5) WITHIN GROUP (ORDER BY age), percentile_disc(0.95) WITHIN GROUP (ORDER BY age), max(age),
			count(*) FILTER (WHERE attempts > 1), sum(failures)::bigint
		FROM (
			SELECT state, attempts, failures, coalesce(extract(epoch FROM
				CASE state WHEN 'in_flight' THEN now() - fetched_at WHEN 'consumed' THEN confirmed_at - created_at ELSE now() - created_at END), 0)::float8 AS age
			FROM welcomes TABLESAMPLE SYSTEM ($1)
		) aged
		GROUP BY state`, percent)
	if err != nil {
		return f, err
	}
	f.Reasons, err = list[ErrorCount](ctx, tx, `
		SELECT left(last_failure, 120), count(*) FROM welcomes TABLESAMPLE SYSTEM ($1) WHERE last_failure IS NOT NULL
		GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $2`, percent, funnelReasons)
	for i := range f.Steps {
		s := &f.Steps[i]
		s.Count, s.Retried, s.Failures = scaled(s.Count, percent), scaled(s.Retried, percent), scaled(s.Failures, percent)
	}
	for i := range f.Reasons {
		f.Reasons[i].Count = scaled(f.Reasons[i].Count, percent)
	}
	return f, err
}

// scaled is the number of all rows, if a part of the table has n.
func scaled(n int64, percent float64) int64 { return int64(math.Round(float64(n) * 100 / percent)) }

// Place is a place in a list of rows that are ordered by time and id.
type Place struct {
	At time.Time
	ID uuid.UUID
}

// ListedWelcome is a Welcome in a list, without its content.
type ListedWelcome struct {
	ID          uuid.UUID
	Convo       uuid.UUID
	Recipient   string
	Device      string
	Epoch       int64
	State       string
	Attempts    int
	Failures    int
	CreatedAt   time.Time
	FetchedAt   *time.Time
	ConfirmedAt *time.Time
	Silent      bool // consumed because its grace was over
	LastFailure string
}

// WelcomesIn lists the Welcomes in a state before a place, the newest first. With failed it lists
// those with a failed join, in any state.
func WelcomesIn(ctx context.Context, tx pgx.Tx, state string, failed bool, before Place, rows int) ([]ListedWelcome, error) {
	return list[ListedWelcome](ctx, tx, `
		SELECT id, convo_id, recipient_did, device_id, epoch, state, attempts, failures, created_at, fetched_at, confirmed_at, silent,
			coalesce(left(last_failure, 120), '')
		FROM welcomes
		WHERE CASE WHEN $2 THEN failures > 0 ELSE state = $1 END AND (created_at, id) < ($3, $4)
		ORDER BY created_at DESC, id DESC LIMIT $5`, state, failed, before.At, before.ID, rows)
}
