package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/operator"
)

// quotasReport says who has used most of which quota today. A limit is that of this command's
// settings.
type quotasReport struct {
	Day    string              `json:"day"`
	Quotas []operator.QuotaUse `json:"quotas"`
}

func quotasFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "did", Usage: "what this DID has used, in full"},
		&cli.IntFlag{Name: "top", Usage: "list at most so many rows; 0: as --rows says"},
	}
}

func reportQuotas(ctx context.Context, i inspection) (report, error) {
	rows := i.rows
	if i.top > 0 {
		rows = i.top
	}
	found, err := operator.Quotas(ctx, i.tx, i.quotas, i.subject, rows)
	for n := range found {
		if i.subject == "" {
			found[n].Subject = i.did(found[n].Subject)
		}
	}
	return quotasReport{time.Now().UTC().Format(time.DateOnly), found}, err
}

func (r quotasReport) print(w io.Writer) {
	table(w, "subject | quota | used | limit | share", r.Quotas, func(q operator.QuotaUse) []any {
		if q.Limit == 0 {
			return []any{q.Subject, q.Quota, q.Used, "-", "-"}
		}
		return []any{q.Subject, q.Quota, q.Used, q.Limit, fmt.Sprintf("%.0f%%", 100*q.Share)}
	})
}
