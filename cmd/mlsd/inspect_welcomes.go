package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"mlsd/welcome"
)

type welcomesReport struct {
	States                  []welcomeCount  `json:"states"`
	OldestInFlightSeconds   *float64        `json:"oldestInFlightSeconds"` // since it was fetched
	FetchedAndNotConfirmed  int64           `json:"fetchedAndNotConfirmed"`
	DeliveriesNotConfirmed  int64           `json:"deliveriesNotConfirmed"`  // the sum of their attempts
	GraceOverAndNotReleased int64           `json:"graceOverAndNotReleased"` // the reaper's next work
	FailedJoins             int64           `json:"failedJoins"`             // of all Welcomes, once per lease
	LastErrors              []lastError     `json:"lastErrors"`              // what devices said last of failed joins
	Welcomes                []listedWelcome `json:"welcomes"`                // most failures first, then most attempts
}

type welcomeCount struct {
	State         string  `json:"state"`
	Count         int64   `json:"count"`
	OldestSeconds float64 `json:"oldestSeconds"`
	Attempts      int64   `json:"attempts"`
}

type lastError struct {
	Error string `json:"error"`
	Count int64  `json:"count"`
}

type listedWelcome struct {
	ID             string   `json:"id"`
	Convo          string   `json:"convo"`
	State          string   `json:"state"`
	Attempts       int64    `json:"attempts"` // leases
	Failures       int64    `json:"failures"`
	AgeSeconds     float64  `json:"ageSeconds"`     // since its commit
	FetchedSeconds *float64 `json:"fetchedSeconds"` // since the last lease was opened
	FailedSeconds  *float64 `json:"failedSeconds"`  // since the last failed join
	LastError      string   `json:"lastError"`
}

// welcomesFlags choose the Welcomes that are listed. --rows bounds the list.
func welcomesFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "state", Usage: "list only Welcomes in this `STATE`"},
		&cli.BoolFlag{Name: "failed", Usage: "list only Welcomes with a failed join, in any state"},
	}
}

// welcomeStates are the values of --state.
func welcomeStates() []string {
	return []string{
		string(welcome.Available), string(welcome.InFlight), string(welcome.Consumed), string(welcome.Superseded), string(welcome.Expired),
	}
}

// reportWelcomes reads the whole table.
func reportWelcomes(ctx context.Context, i inspection) (report, error) {
	if known := welcomeStates(); i.state != "" && !slices.Contains(known, i.state) {
		return nil, fmt.Errorf("--state: %q is none of %s", i.state, strings.Join(known, ", "))
	}
	var r welcomesReport
	var err error
	r.States, err = list[welcomeCount](ctx, i, `
		SELECT state, count(*), extract(epoch FROM now() - min(created_at))::float8, sum(attempts)
		FROM welcomes GROUP BY state ORDER BY state`)
	if err != nil {
		return nil, err
	}
	err = i.tx.QueryRow(ctx, `
		SELECT extract(epoch FROM now() - min(fetched_at) FILTER (WHERE state = 'in_flight'))::float8,
			count(*) FILTER (WHERE attempts > 0 AND state <> 'consumed'), coalesce(sum(attempts) FILTER (WHERE state <> 'consumed'), 0),
			count(*) FILTER (WHERE state = 'in_flight' AND grace_expires_at <= now()), coalesce(sum(failures), 0)
		FROM welcomes`).
		Scan(&r.OldestInFlightSeconds, &r.FetchedAndNotConfirmed, &r.DeliveriesNotConfirmed, &r.GraceOverAndNotReleased, &r.FailedJoins)
	if err != nil {
		return nil, err
	}
	r.LastErrors, err = list[lastError](ctx, i, `
		SELECT left(last_failure, 80), count(*) FROM welcomes WHERE last_failure IS NOT NULL
		GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $1`, i.rows)
	if err != nil {
		return nil, err
	}
	r.Welcomes, err = list[listedWelcome](ctx, i, `
		SELECT id::text, convo_id::text, state, attempts, failures, extract(epoch FROM now() - created_at)::float8,
			extract(epoch FROM now() - fetched_at)::float8, extract(epoch FROM now() - last_failed_at)::float8, coalesce(left(last_failure, 80), '')
		FROM welcomes
		WHERE CASE WHEN $1 <> '' THEN state = $1 WHEN $2 THEN true ELSE attempts > 0 AND state IN ('available', 'in_flight') END
			AND (failures > 0 OR NOT $2)
		ORDER BY failures DESC, attempts DESC, created_at, id LIMIT $3`, i.state, i.failed, i.rows)
	for n := range r.LastErrors {
		r.LastErrors[n].Error = i.text(r.LastErrors[n].Error)
	}
	for n := range r.Welcomes {
		r.Welcomes[n].LastError = i.text(r.Welcomes[n].LastError)
	}
	return r, err
}

func (r welcomesReport) print(w io.Writer) {
	table(w, "state | Welcomes | oldest | attempts", r.States, func(c welcomeCount) []any {
		return []any{c.State, c.Count, seconds(c.OldestSeconds), c.Attempts}
	})
	line(w, "fetched, not confirmed", r.FetchedAndNotConfirmed)
	line(w, "their attempts", r.DeliveriesNotConfirmed)
	line(w, "oldest in flight", age(r.OldestInFlightSeconds))
	line(w, "grace over, not released", r.GraceOverAndNotReleased)
	line(w, "failed joins", r.FailedJoins)
	if len(r.LastErrors) > 0 {
		table(w, "count | last error", r.LastErrors, func(e lastError) []any { return []any{e.Count, e.Error} })
	}
	if len(r.Welcomes) > 0 {
		const heading = "Welcome | convo | state | attempts | failures | age | fetched | failed | last error"
		table(w, heading, r.Welcomes, func(l listedWelcome) []any {
			return []any{
				l.ID, l.Convo, l.State, l.Attempts, l.Failures, seconds(l.AgeSeconds), age(l.FetchedSeconds), age(l.FailedSeconds), l.LastError,
			}
		})
	}
}
