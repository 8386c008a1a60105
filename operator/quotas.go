package operator

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/people/quota"
)

var inspectQuotas = question("quotas", "who has used most of which quota today",
	func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		found, err := Quotas(ctx, tx, s.c.Quotas, c.Params["did"], int(cmp.Or(c.number("top"), int64(c.rows()))))
		return QuotaUses{time.Now().UTC().Format(time.DateOnly), found}, err
	},
	Param{Name: "did", Usage: "what this DID has used", Optional: true},
	Param{Name: "top", Usage: "list at most so many rows; 0: as --rows says", Kind: Number, Optional: true})

// QuotaUses lists who has used most of which quota today. Limits are the limits of the settings.
type QuotaUses struct {
	Day    string     `json:"day" text:"-"`
	Quotas []QuotaUse `json:"quotas"`
}

// QuotaUse is how much of a quota a subject has used today.
type QuotaUse struct {
	Subject string  `json:"subject"` // a DID, ip:ADDRESS or convo:ID
	Quota   string  `json:"quota"`
	Used    int64   `json:"used"`
	Limit   int64   `json:"limit"` // limit of this subject; 0 means none
	Share   float64 `json:"share"` // part of the limit that is used: 1 is all of it
}

func (q QuotaUse) cells() []any {
	if q.Limit == 0 {
		return []any{q.Subject, q.Quota, q.Used, "-", "-"}
	}
	return []any{q.Subject, q.Quota, q.Used, q.Limit, fmt.Sprintf("%.0f%%", 100*q.Share)}
}

// Quotas lists subjects by the share of their limit that they have used today, the highest share
// first. subject selects one of them; "" means all. Quotas reads all counts of the day. A node
// writes small counts once a minute, other counts every 5 seconds. If an operator has limited a
// DID, its limits are scaled by quota.Scaled.
func Quotas(ctx context.Context, tx pgx.Tx, limits quota.Limits, subject string, rows int) ([]QuotaUse, error) {
	byDay := limits.ByDay()
	names, values := make([]string, 0, len(byDay)), make([]int64, 0, len(byDay))
	for name, limit := range byDay {
		names, values = append(names, name), append(values, limit)
	}
	return list[QuotaUse](ctx, tx, `
		SELECT subject, quota, n, coalesce(l.value, 0), coalesce(n::float8 / l.value, 0)
		FROM quota_counts LEFT JOIN unnest($1::text[], $2::bigint[]) AS s (name, value) ON s.name = quota
		LEFT JOIN accounts ON did = subject AND limit_percent IS NOT NULL AND (limit_until > now() OR limit_until IS NULL)
		CROSS JOIN LATERAL (
			SELECT CASE WHEN did IS NULL OR s.value IS NULL THEN s.value
				ELSE least(greatest(trunc(s.value::numeric * limit_percent / 100), 1), 9223372036854775807)::bigint END AS value
		) AS l
		WHERE day = (now() AT TIME ZONE 'UTC')::date AND (subject = $3 OR $3 = '')
		ORDER BY 5 DESC, 3 DESC, 1, 2 LIMIT $4`, names, values, subject, rows)
}
