package operator

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// AllOthers stands for the callers of an hour that are not counted by name.
const AllOthers = "(all others)"

// anyMethod is the method in the row of all others. There is only one such row, so that there is
// space for more callers.
const anyMethod = "(every method)"

// callersParam makes the methods records and conflicts list callers.
func callersParam(usage string) Param {
	return Param{Name: "by-caller", Usage: usage, Kind: Flag, Optional: true}
}

// CallerUses lists the callers and methods with the most requests in a window of time.
type CallerUses struct {
	SinceSeconds float64     `json:"sinceSeconds" text:"-"`
	Callers      []CallerUse `json:"callers"`
}

// CallerUse counts a caller's requests of one method by their result.
type CallerUse struct {
	Caller      string  `json:"caller"` // a DID or AllOthers
	Method      string  `json:"method"`
	Requests    int64   `json:"requests"`
	First       int64   `json:"first"`
	Replayed    int64   `json:"replayed"`
	Expired     int64   `json:"expired"`
	Conflicts   int64   `json:"conflicts"`
	InProgress  int64   `json:"inProgress"`
	Epoch       int64   `json:"epochMismatches" text:"wrong epoch"`
	MeanSeconds float64 `json:"meanSeconds" text:"mean time|short"`
	Seconds     float64 `json:"seconds" text:"total time|short"` // time of all these requests
}

// callers lists the callers and methods with the most requests. A node writes its counts every 10
// seconds. The list begins with the hour in which the window begins.
func callers(ctx context.Context, tx pgx.Tx, c Call) (any, error) {
	found, err := list[CallerUse](ctx, tx, `
		SELECT coalesce(nullif(caller_did, ''), $3), CASE caller_did WHEN '' THEN $4 ELSE nsid END AS method, sum(n)::bigint,
			coalesce(sum(n) FILTER (WHERE kind = 'first'), 0)::bigint, coalesce(sum(n) FILTER (WHERE kind = 'replay'),
				0)::bigint,
			coalesce(sum(n) FILTER (WHERE kind = 'expired'), 0)::bigint, coalesce(sum(n) FILTER (WHERE kind =
				'IdempotencyConflict'), 0)::bigint,
			coalesce(sum(n) FILTER (WHERE kind = 'RequestInProgress'), 0)::bigint, coalesce(sum(n) FILTER (WHERE kind =
				'EpochMismatch'), 0)::bigint,
			sum(seconds) / sum(n), sum(seconds)
		FROM caller_counts WHERE hour > now() - $1::interval - interval '1 hour'
		GROUP BY caller_did, method ORDER BY sum(n) DESC, caller_did, method LIMIT $2`, c.window(), c.rows(), AllOthers,
		anyMethod)
	return CallerUses{c.window().Seconds(), found}, err
}

// RefusedUses lists the callers and methods with the most refused requests in a window of time.
type RefusedUses struct {
	SinceSeconds float64      `json:"sinceSeconds" text:"-"`
	Callers      []RefusedUse `json:"callers"`
}

// RefusedUse counts a caller's requests of one method that were refused because of another request.
type RefusedUse struct {
	Caller   string    `json:"caller"` // a DID or AllOthers
	Error    string    `json:"error"`
	Method   string    `json:"method"`
	Count    int64     `json:"count"`
	LastHour time.Time `json:"lastHour" text:"last hour (UTC)|hour"`
}

// MostRefused lists the callers and methods with the most refused requests.
func MostRefused(ctx context.Context, tx pgx.Tx, since time.Duration, rows int) ([]RefusedUse, error) {
	return list[RefusedUse](ctx, tx, `
		SELECT coalesce(nullif(caller_did, ''), $3), kind, CASE caller_did WHEN '' THEN $4 ELSE nsid END AS method,
			sum(n)::bigint, max(hour)
		FROM caller_counts
		WHERE hour > now() - $1::interval - interval '1 hour' AND kind IN ('IdempotencyConflict', 'RequestInProgress',
			'EpochMismatch')
		GROUP BY caller_did, kind, method ORDER BY sum(n) DESC, caller_did, kind, method LIMIT $2`, since, rows, AllOthers,
		anyMethod)
}

// HitRate returns the share of requests with a used key that got the first answer. It is 0 if there
// were no requests.
func (c CallerUse) HitRate() float64 {
	all := c.First + c.Replayed + c.Expired + c.Conflicts + c.InProgress
	if all == 0 {
		return 0
	}
	return float64(c.Replayed) / float64(all)
}

// Keys lists, by method, the results of requests with keys, of all callers.
func Keys(ctx context.Context, tx pgx.Tx, since time.Duration) ([]CallerUse, error) {
	return list[CallerUse](ctx, tx, `
		SELECT '', nsid, sum(n)::bigint,
			coalesce(sum(n) FILTER (WHERE kind = 'first'), 0)::bigint, coalesce(sum(n) FILTER (WHERE kind = 'replay'),
				0)::bigint,
			coalesce(sum(n) FILTER (WHERE kind = 'expired'), 0)::bigint, coalesce(sum(n) FILTER (WHERE kind =
				'IdempotencyConflict'), 0)::bigint,
			coalesce(sum(n) FILTER (WHERE kind = 'RequestInProgress'), 0)::bigint, 0::bigint, sum(seconds) / sum(n), sum(seconds)
		FROM caller_counts
		WHERE hour > now() - $1::interval - interval '1 hour' AND kind IN ('first', 'replay', 'expired',
			'IdempotencyConflict', 'RequestInProgress')
		GROUP BY nsid ORDER BY sum(n) DESC, nsid`, since)
}
