package main

import (
	"context"
	"io"
	"time"

	"mlsd/operator"
)

type callersReport struct {
	SinceSeconds float64              `json:"sinceSeconds"`
	Callers      []operator.CallerUse `json:"callers"`
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

func reportCallers(ctx context.Context, i inspection) (report, error) {
	found, err := operator.Callers(ctx, i.tx, i.window(), i.rows)
	for n := range found {
		found[n].Caller = i.caller(found[n].Caller)
	}
	return callersReport{i.window().Seconds(), found}, err
}

func (r callersReport) print(w io.Writer) {
	table(w, "caller | method | requests | first | replayed | expired | conflicts | in progress | wrong epoch | mean time | total time", r.Callers,
		func(c operator.CallerUse) []any {
			return []any{c.Caller, c.Method, c.Requests, c.First, c.Replayed, c.Expired, c.Conflicts, c.InProgress, c.Epoch,
				milliseconds(c.MeanSeconds), milliseconds(c.Seconds)}
		})
}

// milliseconds formats a time span to the millisecond, such as 1.25s or 3ms.
func milliseconds(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}

type refusedReport struct {
	SinceSeconds float64               `json:"sinceSeconds"`
	Callers      []operator.RefusedUse `json:"callers"`
}

func reportRefused(ctx context.Context, i inspection) (report, error) {
	found, err := operator.Refused(ctx, i.tx, i.window(), i.rows)
	for n := range found {
		found[n].Caller = i.caller(found[n].Caller)
	}
	return refusedReport{i.window().Seconds(), found}, err
}

func (r refusedReport) print(w io.Writer) {
	table(w, "caller | error | method | count | last hour (UTC)", r.Callers, func(c operator.RefusedUse) []any {
		return []any{c.Caller, c.Error, c.Method, c.Count, hour(c.LastHour)}
	})
}
