package operator

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/quota"
)

// QuotaUse is how much of a quota a subject has used today.
type QuotaUse struct {
	Subject string  `json:"subject"` // a DID, ip:ADDRESS or convo:ID
	Quota   string  `json:"quota"`
	Used    int64   `json:"used"`
	Limit   int64   `json:"limit"` // of this subject; 0: none
	Share   float64 `json:"share"` // of the limit: 1 is all of it
}

// Quotas lists subjects by the share of the limit that they have used today, the highest share
// first: all, or one. It reads all counts of the day. A node writes small counts once a minute,
// others every 5 seconds. The limits of a DID are those that an operator's limit leaves it, as
// quota.Scaled counts them.
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
