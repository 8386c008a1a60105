package main

import (
	"context"
	"io"

	"mlsd/operator"
)

type pushReport struct {
	Tables     bool                  `json:"tables"` // false: this database has no push tables
	Jobs       []pushCount           `json:"jobs"`
	LastErrors []operator.ErrorCount `json:"lastErrors"` // of jobs that are not done
}

type pushCount struct {
	State         string  `json:"state"`
	Count         int64   `json:"count"`
	Due           int64   `json:"due"`
	OldestSeconds float64 `json:"oldestSeconds"`
	Attempts      int64   `json:"attempts"`
}

// reportPush counts the jobs by state.
func reportPush(ctx context.Context, i inspection) (report, error) {
	r := pushReport{Jobs: []pushCount{}, LastErrors: []operator.ErrorCount{}}
	err := i.tx.QueryRow(ctx, `SELECT to_regclass('push_jobs') IS NOT NULL`).Scan(&r.Tables)
	if err != nil || !r.Tables {
		return r, err
	}
	r.Jobs, err = list[pushCount](ctx, i, `
		SELECT state, count(*), count(*) FILTER (WHERE state IN ('pending', 'sending') AND next_attempt_at <= now()),
			extract(epoch FROM now() - min(created_at))::float8, sum(attempts)
		FROM push_jobs GROUP BY state ORDER BY state`)
	if err != nil {
		return nil, err
	}
	r.LastErrors, err = list[operator.ErrorCount](ctx, i, `
		SELECT left(last_error, 80), count(*) FROM push_jobs WHERE last_error IS NOT NULL AND state <> 'done'
		GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $1`, i.rows)
	for n := range r.LastErrors {
		r.LastErrors[n].Error = i.text(r.LastErrors[n].Error)
	}
	return r, err
}

func (r pushReport) print(w io.Writer) {
	if !r.Tables {
		line(w, "no push tables")
		return
	}
	table(w, "state | jobs | due | oldest | attempts", r.Jobs, func(c pushCount) []any {
		return []any{c.State, c.Count, c.Due, seconds(c.OldestSeconds), c.Attempts}
	})
	if len(r.LastErrors) > 0 {
		table(w, "count | last error", r.LastErrors, func(e operator.ErrorCount) []any { return []any{e.Count, e.Error} })
	}
}
