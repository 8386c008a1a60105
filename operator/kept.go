package operator

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/idem"
)

// KeptRecords is what the lifetime of a method's records costs.
type KeptRecords struct {
	Method  string
	Life    time.Duration // as the settings say
	Records int64
	Expired int64 // not removed yet
	Bytes   int64 // of the answers
	Oldest  time.Duration
}

// Kept counts the records of each method. If exact is false, the table is large, and the figures are
// estimates.
func Kept(ctx context.Context, tx pgx.Tx, settings idem.Lifetimes) (all []KeptRecords, exact bool, err error) {
	percent, err := sampled(ctx, tx, "idempotency_keys")
	if err != nil {
		return nil, false, err
	}
	found, err := list[struct {
		Method                  string
		Records, Expired, Bytes int64
		Oldest                  float64
	}](ctx, tx, `
		SELECT nsid, count(*), count(*) FILTER (WHERE expires_at <= now()), coalesce(sum(octet_length(response)), 0)::bigint,
			extract(epoch FROM now() - min(created_at))::float8
		FROM idempotency_keys TABLESAMPLE SYSTEM ($1) GROUP BY nsid ORDER BY nsid`, percent)
	if err != nil {
		return nil, false, err
	}
	for _, f := range found {
		all = append(all, KeptRecords{
			Method: f.Method, Life: lifeOf(settings, f.Method), Records: scaled(f.Records, percent), Expired: scaled(f.Expired, percent),
			Bytes: scaled(f.Bytes, percent), Oldest: time.Duration(f.Oldest * float64(time.Second)),
		})
	}
	return all, percent == 100, nil
}

func lifeOf(settings idem.Lifetimes, method string) time.Duration {
	operations := settings.All()
	for _, o := range operations {
		if o.NSID == method {
			return o.Life
		}
	}
	return operations[0].Life
}

// FieldCount counts the conflicts of a method in which a field differs.
type FieldCount struct {
	Method, Field string
	Count         int64
}

// recentRequests is how many of the newest rows of requests the statistics look at.
const recentRequests = 50_000

// ConflictFields counts which fields differ when a key is used for another request, in the newest
// 50,000 rows of requests.
func ConflictFields(ctx context.Context, tx pgx.Tx, since time.Duration, rows int) ([]FieldCount, error) {
	return list[FieldCount](ctx, tx, `
		SELECT nsid, field, count(*)
		FROM (SELECT * FROM requests ORDER BY id DESC LIMIT $1) r
		CROSS JOIN LATERAL jsonb_array_elements_text(CASE jsonb_typeof(detail -> 'fields') WHEN 'array' THEN detail -> 'fields' ELSE '[]' END) AS of (field)
		WHERE error = 'IdempotencyConflict' AND at > now() - $2::interval
		GROUP BY nsid, field ORDER BY 3 DESC, 1, 2 LIMIT $3`, recentRequests, since, rows)
}

// Processing lists the work that is under way, that whose lease ends first at the top. An index
// finds it.
func Processing(ctx context.Context, tx pgx.Tx, rows int) ([]Reservation, error) {
	return list[Reservation](ctx, tx, `
		SELECT nsid, scope, key, caller_did, state, extract(epoch FROM now() - started_at)::float8, fence,
			extract(epoch FROM lease_expires_at - now())::float8, lease_expires_at <= now(), coalesce(last_error, '')
		FROM idempotency_keys WHERE state = 'processing' ORDER BY lease_expires_at LIMIT $1`, rows)
}
