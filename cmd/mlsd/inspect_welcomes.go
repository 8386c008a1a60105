package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"mlsd/operator"
	"mlsd/welcome"
)

type welcomesReport operator.Welcomes

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

func reportWelcomes(ctx context.Context, i inspection) (report, error) {
	if known := welcomeStates(); i.state != "" && !slices.Contains(known, i.state) {
		return nil, fmt.Errorf("--state: %q is none of %s", i.state, strings.Join(known, ", "))
	}
	r, err := operator.ReadWelcomes(ctx, i.tx, i.state, i.failed, i.rows)
	for n := range r.LastErrors {
		r.LastErrors[n].Error = i.text(r.LastErrors[n].Error)
	}
	for n := range r.Welcomes {
		r.Welcomes[n].LastError = i.text(r.Welcomes[n].LastError)
	}
	return welcomesReport(r), err
}

func (r welcomesReport) print(w io.Writer) {
	table(w, "state | Welcomes | oldest | attempts", r.States, func(c operator.WelcomeCount) []any {
		return []any{c.State, c.Count, seconds(c.OldestSeconds), c.Attempts}
	})
	line(w, "fetched, not confirmed", r.FetchedAndNotConfirmed)
	line(w, "their attempts", r.DeliveriesNotConfirmed)
	line(w, "oldest in flight", age(r.OldestInFlightSeconds))
	line(w, "grace over, not released", r.GraceOverAndNotReleased)
	line(w, "failed joins", r.FailedJoins)
	if len(r.LastErrors) > 0 {
		table(w, "count | last error", r.LastErrors, func(e operator.ErrorCount) []any { return []any{e.Count, e.Error} })
	}
	if len(r.Welcomes) > 0 {
		const heading = "Welcome | convo | state | attempts | failures | age | fetched | failed | last error"
		table(w, heading, r.Welcomes, func(l operator.Welcome) []any {
			return []any{
				l.ID, l.Convo, l.State, l.Attempts, l.Failures, seconds(l.AgeSeconds), age(l.FetchedSeconds), age(l.FailedSeconds), l.LastError,
			}
		})
	}
}
