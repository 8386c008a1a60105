package main

import (
	"cmp"
	"context"
	"io"
	"math"
	"time"

	"mlsd/operator"
)

type reservationsReport operator.Reservations

func reportReservations(ctx context.Context, i inspection) (report, error) {
	r, err := operator.ReadReservations(ctx, i.tx, i.rows)
	for n := range r.Reservations {
		one := &r.Reservations[n]
		one.Caller, one.Key, one.LastError = i.did(one.Caller), i.text(one.Key), i.text(one.LastError)
	}
	return reservationsReport(r), err
}

func (r reservationsReport) print(w io.Writer) {
	line(w, "processing", r.Processing)
	line(w, "stuck", r.Stuck)
	line(w, "released", r.Released)
	table(w, "method | scope | key | caller | age | fence | lease | last error", r.Reservations, func(o operator.Reservation) []any {
		return []any{o.Method, orDash(o.Scope), o.Key, o.Caller, seconds(o.AgeSeconds), o.Fence, lease(o), orDash(o.LastError)}
	})
}

// lease says in words whether somebody has a lease.
func lease(o operator.Reservation) string {
	switch {
	case o.State == "released":
		return "released"
	case o.Stuck:
		return "over since " + seconds(-o.LeaseSeconds)
	}
	return "held, " + seconds(o.LeaseSeconds) + " left"
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

type recordsReport struct {
	Records []operator.RecordCount `json:"records"`
}

// reportRecords counts records, those that were made in the window if one is asked for.
func reportRecords(ctx context.Context, i inspection) (report, error) {
	if i.byCaller {
		return reportCallers(ctx, i)
	}
	var since *time.Duration
	if i.since != 0 {
		since = &i.since
	}
	found, err := operator.Records(ctx, i.tx, since)
	return recordsReport{found}, err
}

func (r recordsReport) print(w io.Writer) {
	table(w, "method | state | outcome | records | oldest | expired | bytes", r.Records, func(c operator.RecordCount) []any {
		return []any{c.Method, c.State, c.Outcome, c.Count, seconds(c.OldestSeconds), c.Expired, c.AnswerBytes}
	})
}

type lifetimesReport struct {
	Lifetimes []operator.Lifetime `json:"lifetimes"`
}

func reportLifetimes(ctx context.Context, i inspection) (report, error) {
	found, err := operator.Lifetimes(ctx, i.tx, i.lifetimes)
	return lifetimesReport{found}, err
}

func (r lifetimesReport) print(w io.Writer) {
	span := func(n float64) string {
		if n == 0 {
			return "-"
		}
		return seconds(n)
	}
	table(w, "method | life | at least | lease | records | expired, kept | next expires in", r.Lifetimes, func(l operator.Lifetime) []any {
		return []any{l.Method, seconds(l.LifeSeconds), span(l.LeastSeconds), span(l.LeaseSeconds), l.Records, l.Expired, age(l.NextSeconds)}
	})
}

type conflictsReport struct {
	Hours     int                 `json:"hours"`
	Conflicts []operator.Conflict `json:"conflicts"`
}

// defaultSince is how far back requests are shown if the operator does not say.
const defaultSince = 24 * time.Hour

// window returns how far back a report looks: as asked, or a day.
func (i inspection) window() time.Duration { return cmp.Or(i.since, defaultSince) }

func reportConflicts(ctx context.Context, i inspection) (report, error) {
	if i.byCaller {
		return reportRefused(ctx, i)
	}
	found, err := operator.Conflicts(ctx, i.tx, i.window())
	return conflictsReport{int(math.Ceil(i.window().Hours())), found}, err
}

func (r conflictsReport) print(w io.Writer) {
	table(w, "hour (UTC) | error | method | count", r.Conflicts, func(c operator.Conflict) []any {
		return []any{hour(c.Hour), c.Error, c.Method, c.Count}
	})
}

func hour(t time.Time) string { return t.UTC().Format("2006-01-02 15:00") }
