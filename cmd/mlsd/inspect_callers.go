package main

import (
	"context"
	"io"
	"time"
)

type callersReport struct {
	SinceSeconds float64     `json:"sinceSeconds"`
	Callers      []callerUse `json:"callers"`
}

// callerUse is what became of a caller's requests of one method.
type callerUse struct {
	Caller      string  `json:"caller"` // allOthers: those that are not counted by name
	Method      string  `json:"method"`
	Requests    int64   `json:"requests"`
	First       int64   `json:"first"`
	Replayed    int64   `json:"replayed"`
	Expired     int64   `json:"expired"`
	Conflicts   int64   `json:"conflicts"`
	InProgress  int64   `json:"inProgress"`
	Epoch       int64   `json:"epochMismatches"`
	Seconds     float64 `json:"seconds"` // that all these requests took
	MeanSeconds float64 `json:"meanSeconds"`
}

// allOthers stands for the callers of an hour that were not among those with the most requests.
const allOthers = "(all others)"

// caller returns a caller of caller_counts as the operator asked to see it.
func (i inspection) caller(did string) string {
	if did == "" {
		return allOthers
	}
	return i.did(did)
}

// reportCallers lists the callers and methods with the most requests. A node writes its counts
// every 10 seconds. The first hour is the one in which the window begins.
func reportCallers(ctx context.Context, i inspection) (report, error) {
	since := i.window(defaultSince)
	found, err := list[callerUse](ctx, i, `
		SELECT caller_did, nsid, sum(n)::bigint,
			coalesce(sum(n) FILTER (WHERE kind = 'first'), 0)::bigint, coalesce(sum(n) FILTER (WHERE kind = 'replay'), 0)::bigint,
			coalesce(sum(n) FILTER (WHERE kind = 'expired'), 0)::bigint, coalesce(sum(n) FILTER (WHERE kind = 'IdempotencyConflict'), 0)::bigint,
			coalesce(sum(n) FILTER (WHERE kind = 'RequestInProgress'), 0)::bigint, coalesce(sum(n) FILTER (WHERE kind = 'EpochMismatch'), 0)::bigint,
			sum(seconds), sum(seconds) / sum(n)
		FROM caller_counts WHERE hour > now() - $1::interval - interval '1 hour'
		GROUP BY caller_did, nsid ORDER BY sum(n) DESC, caller_did, nsid LIMIT $2`, since, i.rows)
	for n := range found {
		found[n].Caller = i.caller(found[n].Caller)
	}
	return callersReport{since.Seconds(), found}, err
}

func (r callersReport) print(w io.Writer) {
	table(w, "caller | method | requests | first | replayed | expired | conflicts | in progress | wrong epoch | mean time | total time", r.Callers,
		func(c callerUse) []any {
			return []any{c.Caller, c.Method, c.Requests, c.First, c.Replayed, c.Expired, c.Conflicts, c.InProgress, c.Epoch,
				milliseconds(c.MeanSeconds), milliseconds(c.Seconds)}
		})
}

// milliseconds formats a time span to the millisecond, such as 1.25s or 3ms.
func milliseconds(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}

type refusedReport struct {
	SinceSeconds float64      `json:"sinceSeconds"`
	Callers      []refusedUse `json:"callers"`
}

// refusedUse are a caller's requests of one method that were refused because of another request.
type refusedUse struct {
	Caller   string    `json:"caller"` // allOthers: those that are not counted by name
	Error    string    `json:"error"`
	Method   string    `json:"method"`
	Count    int64     `json:"count"`
	LastHour time.Time `json:"lastHour"`
}

// reportRefused lists the callers and methods with the most refused requests.
func reportRefused(ctx context.Context, i inspection) (report, error) {
	since := i.window(defaultSince)
	found, err := list[refusedUse](ctx, i, `
		SELECT caller_did, kind, nsid, sum(n)::bigint, max(hour)
		FROM caller_counts
		WHERE hour > now() - $1::interval - interval '1 hour' AND kind IN ('IdempotencyConflict', 'RequestInProgress', 'EpochMismatch')
		GROUP BY caller_did, kind, nsid ORDER BY sum(n) DESC, caller_did, kind, nsid LIMIT $2`, since, i.rows)
	for n := range found {
		found[n].Caller = i.caller(found[n].Caller)
	}
	return refusedReport{since.Seconds(), found}, err
}

func (r refusedReport) print(w io.Writer) {
	table(w, "caller | error | method | count | last hour (UTC)", r.Callers, func(c refusedUse) []any {
		return []any{c.Caller, c.Error, c.Method, c.Count, hour(c.LastHour)}
	})
}
