package main

import (
	"context"
	"io"
	"math"
	"slices"
	"time"
)

type reservationsReport struct {
	Processing   int           `json:"processing"`
	Stuck        int           `json:"stuck"`    // of those, the lease is over
	Released     int           `json:"released"` // the last attempt failed, and none has begun since
	Reservations []reservation `json:"reservations"`
}

type reservation struct {
	Method       string  `json:"method"`
	Scope        string  `json:"scope"`
	Key          string  `json:"key"`
	Caller       string  `json:"caller"`
	State        string  `json:"state"`
	AgeSeconds   float64 `json:"ageSeconds"`
	Fence        int64   `json:"fence"`
	LeaseSeconds float64 `json:"leaseSeconds"` // that are left; negative if the lease is over
	Stuck        bool    `json:"stuck"`
	LastError    string  `json:"lastError"` // of an attempt before this one
}

// reportReservations lists what is processing, the longest stuck first, and then what was released.
// It reads the whole table.
func reportReservations(ctx context.Context, i inspection) (report, error) {
	var r reservationsReport
	err := i.tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE state = 'processing'), count(*) FILTER (WHERE state = 'processing' AND lease_expires_at <= now()),
			count(*) FILTER (WHERE state = 'released')
		FROM idempotency_keys WHERE state IN ('processing', 'released')`).Scan(&r.Processing, &r.Stuck, &r.Released)
	if err != nil {
		return nil, err
	}
	r.Reservations, err = list[reservation](ctx, i, `
		SELECT nsid, scope, key, caller_did, state, extract(epoch FROM now() - started_at)::float8, fence,
			extract(epoch FROM lease_expires_at - now())::float8, state = 'processing' AND lease_expires_at <= now(), coalesce(last_error, '')
		FROM idempotency_keys WHERE state IN ('processing', 'released') ORDER BY state, lease_expires_at LIMIT $1`, i.rows)
	for n := range r.Reservations {
		one := &r.Reservations[n]
		one.Caller, one.Key, one.LastError = i.did(one.Caller), i.text(one.Key), i.text(one.LastError)
	}
	return r, err
}

func (r reservationsReport) print(w io.Writer) {
	line(w, "processing", r.Processing)
	line(w, "stuck", r.Stuck)
	line(w, "released", r.Released)
	table(w, "method | scope | key | caller | age | fence | lease | last error", r.Reservations, func(o reservation) []any {
		return []any{o.Method, orDash(o.Scope), o.Key, o.Caller, seconds(o.AgeSeconds), o.Fence, o.lease(), orDash(o.LastError)}
	})
}

// lease says in words whether somebody has a lease.
func (o reservation) lease() string {
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
	Records []recordCount `json:"records"`
}

type recordCount struct {
	Method        string  `json:"method"`
	State         string  `json:"state"`
	Outcome       string  `json:"outcome"`
	Count         int64   `json:"count"`
	OldestSeconds float64 `json:"oldestSeconds"`
	Expired       int64   `json:"expired"` // not removed yet
	AnswerBytes   int64   `json:"answerBytes"`
}

// reportRecords counts records, those that were made in the window if one is asked for. It reads
// the whole table.
func reportRecords(ctx context.Context, i inspection) (report, error) {
	if i.byCaller {
		return reportCallers(ctx, i)
	}
	found, err := list[recordCount](ctx, i, `
		SELECT nsid, state, outcome, count(*), extract(epoch FROM now() - min(created_at))::float8,
			count(*) FILTER (WHERE expires_at <= now()), coalesce(sum(octet_length(response)), 0)::bigint
		FROM idempotency_keys WHERE $1::interval IS NULL OR created_at > now() - $1 GROUP BY nsid, state, outcome ORDER BY nsid, state, outcome`,
		i.window(0))
	return recordsReport{found}, err
}

func (r recordsReport) print(w io.Writer) {
	table(w, "method | state | outcome | records | oldest | expired | bytes", r.Records, func(c recordCount) []any {
		return []any{c.Method, c.State, c.Outcome, c.Count, seconds(c.OldestSeconds), c.Expired, c.AnswerBytes}
	})
}

type lifetimesReport struct {
	Lifetimes []lifetime `json:"lifetimes"`
}

type lifetime struct {
	Method       string   `json:"method"`
	LifeSeconds  float64  `json:"lifeSeconds"`
	LeastSeconds float64  `json:"leastLifeSeconds"` // that MLSD_IDEMPOTENCY_TTL can set
	LeaseSeconds float64  `json:"leaseSeconds"`     // of work outside the database; else 0
	Records      int64    `json:"records"`
	Expired      int64    `json:"expired"` // not removed yet
	NextSeconds  *float64 `json:"nextSeconds"`
}

// defaultMethods names the operations that state no lifetimes.
const defaultMethods = "(every other)"

// reportLifetimes lists the lifetimes of records and leases as the settings of this command say,
// and how many records there are.
func reportLifetimes(ctx context.Context, i inspection) (report, error) {
	counts, err := list[struct {
		Method           string
		Records, Expired int64
		Next             *float64
	}](ctx, i, `
		SELECT nsid, count(*), count(*) FILTER (WHERE expires_at <= now()),
			extract(epoch FROM min(expires_at) FILTER (WHERE expires_at > now()) - now())::float8
		FROM idempotency_keys GROUP BY nsid ORDER BY nsid`)
	if err != nil {
		return nil, err
	}
	operations := i.lifetimes.All()
	all := make([]lifetime, len(operations))
	for n, o := range operations {
		all[n] = lifetime{Method: o.NSID, LifeSeconds: o.Life.Seconds(), LeastSeconds: o.Least.Life.Seconds(), LeaseSeconds: o.Lease.Seconds()}
	}
	for _, c := range counts {
		n := slices.IndexFunc(all, func(l lifetime) bool { return l.Method == c.Method })
		if n < 0 {
			n = len(all)
			all = append(all, lifetime{Method: c.Method, LifeSeconds: all[0].LifeSeconds, LeaseSeconds: all[0].LeaseSeconds})
		}
		all[n].Records, all[n].Expired, all[n].NextSeconds = c.Records, c.Expired, c.Next
	}
	all[0].Method = defaultMethods
	return lifetimesReport{all}, nil
}

func (r lifetimesReport) print(w io.Writer) {
	span := func(n float64) string {
		if n == 0 {
			return "-"
		}
		return seconds(n)
	}
	table(w, "method | life | at least | lease | records | expired, kept | next expires in", r.Lifetimes, func(l lifetime) []any {
		return []any{l.Method, seconds(l.LifeSeconds), span(l.LeastSeconds), span(l.LeaseSeconds), l.Records, l.Expired, age(l.NextSeconds)}
	})
}

type conflictsReport struct {
	Hours     int        `json:"hours"`
	Conflicts []conflict `json:"conflicts"`
}

type conflict struct {
	Hour   time.Time `json:"hour"`
	Error  string    `json:"error"`
	Method string    `json:"method"`
	Count  int64     `json:"count"`
}

// defaultSince is how far back requests are shown if the operator does not say.
const defaultSince = 24 * time.Hour

// window returns how far back a report looks: as asked, or unless. 0 is no limit, as nil.
func (i inspection) window(unless time.Duration) *time.Duration {
	since := i.since
	if since == 0 {
		since = unless
	}
	if since == 0 {
		return nil
	}
	return &since
}

// reportConflicts lists refused requests by the hour, the newest first. A node writes its counts
// every 10 seconds. The first hour is the one in which the window begins.
func reportConflicts(ctx context.Context, i inspection) (report, error) {
	if i.byCaller {
		return reportRefused(ctx, i)
	}
	since := i.window(defaultSince)
	found, err := list[conflict](ctx, i, `
		SELECT hour, kind, nsid, n FROM conflict_counts
		WHERE hour > now() - $1::interval - interval '1 hour' ORDER BY hour DESC, kind, nsid`, since)
	return conflictsReport{int(math.Ceil(since.Hours())), found}, err
}

func (r conflictsReport) print(w io.Writer) {
	table(w, "hour (UTC) | error | method | count", r.Conflicts, func(c conflict) []any {
		return []any{hour(c.Hour), c.Error, c.Method, c.Count}
	})
}

func hour(t time.Time) string { return t.UTC().Format("2006-01-02 15:00") }
