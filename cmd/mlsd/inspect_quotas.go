package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v3"
)

// quotasReport says who has used most of which quota today. A limit is that of this command's
// settings.
type quotasReport struct {
	Day    string     `json:"day"`
	Quotas []quotaUse `json:"quotas"`
}

type quotaUse struct {
	Subject string  `json:"subject"` // a DID, ip:ADDRESS or convo:ID
	Quota   string  `json:"quota"`
	Used    int64   `json:"used"`
	Limit   int64   `json:"limit"` // 0: none
	Share   float64 `json:"share"` // of the limit: 1 is all of it
}

func quotasFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "did", Usage: "what this DID has used, in full"},
		&cli.IntFlag{Name: "top", Usage: "list at most so many rows; 0: as --rows says"},
	}
}

// reportQuotas lists subjects by the share of the limit that they have used today, the highest share
// first. It reads all counts of the day. A node writes small counts once a minute, others every 5
// seconds.
func reportQuotas(ctx context.Context, i inspection) (report, error) {
	limits := i.quotas.ByDay()
	names, values := make([]string, 0, len(limits)), make([]int64, 0, len(limits))
	for name, limit := range limits {
		names, values = append(names, name), append(values, limit)
	}
	rows := i.rows
	if i.top > 0 {
		rows = i.top
	}
	found, err := list[quotaUse](ctx, i, `
		SELECT subject, quota, n, coalesce(l.value, 0), coalesce(n::float8 / l.value, 0)
		FROM quota_counts LEFT JOIN unnest($1::text[], $2::bigint[]) AS l (name, value) ON l.name = quota
		WHERE day = (now() AT TIME ZONE 'UTC')::date AND (subject = $3 OR $3 = '')
		ORDER BY 5 DESC, 3 DESC, 1, 2 LIMIT $4`, names, values, i.subject, rows)
	for n := range found {
		if i.subject == "" {
			found[n].Subject = i.did(found[n].Subject)
		}
	}
	return quotasReport{time.Now().UTC().Format(time.DateOnly), found}, err
}

func (r quotasReport) print(w io.Writer) {
	table(w, "subject | quota | used | limit | share", r.Quotas, func(q quotaUse) []any {
		if q.Limit == 0 {
			return []any{q.Subject, q.Quota, q.Used, "-", "-"}
		}
		return []any{q.Subject, q.Quota, q.Used, q.Limit, fmt.Sprintf("%.0f%%", 100*q.Share)}
	})
}
