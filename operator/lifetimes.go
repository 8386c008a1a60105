package operator

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"mlsd/idem"
)

var inspectLifetimes = question("lifetimes", "how long records last, and how many there are",
	func(ctx context.Context, s *Service, tx pgx.Tx, _ Call) (any, error) {
		found, err := ReadLifetimes(ctx, tx, s.c.Lifetimes, WholeTable)
		return Lifetimes{found}, err
	})

// Lifetimes lists the lifetimes of records and leases, as the settings say.
type Lifetimes struct {
	Lifetimes []Lifetime `json:"lifetimes"`
}

// Lifetime says how long the records of a method are kept, how many there are, and their size.
type Lifetime struct {
	Method        string   `json:"method"`
	LifeSeconds   float64  `json:"lifeSeconds" text:"life"`
	MinSeconds    float64  `json:"leastLifeSeconds" text:"at least"` // shortest that MLSD_IDEMPOTENCY_TTL can set
	LeaseSeconds  float64  `json:"leaseSeconds" text:"lease"`        // for work outside the database; else 0
	Records       int64    `json:"records"`
	MeanSeconds   *float64 `json:"meanLifeSeconds" text:"mean life"` // of the stored records
	Expired       int64    `json:"expired" text:"expired, kept"`     // not yet deleted
	NextSeconds   *float64 `json:"nextSeconds" text:"next expires in"`
	AnswerBytes   int64    `json:"answerBytes" text:"-"`
	OldestSeconds float64  `json:"oldestSeconds" text:"-"`
}

// defaultMethods names the operations that have no lifetime of their own.
const defaultMethods = "(every other)"

// ReadLifetimes lists the lifetimes of records and leases. It also counts the records, or estimates
// their number from percent of the table.
func ReadLifetimes(ctx context.Context, tx pgx.Tx, settings idem.Lifetimes, percent float64) ([]Lifetime, error) {
	counts, err := list[struct {
		Method                  string
		Records, Expired, Bytes int64
		Mean, Next              *float64
		Oldest                  float64
	}](ctx, tx, `
		SELECT nsid, count(*), count(*) FILTER (WHERE expires_at <= now()), coalesce(sum(octet_length(response)), 0)::bigint,
			extract(epoch FROM avg(expires_at - created_at))::float8,
			extract(epoch FROM min(expires_at) FILTER (WHERE expires_at > now()) - now())::float8,
			extract(epoch FROM now() - min(created_at))::float8
		FROM idempotency_keys TABLESAMPLE SYSTEM ($1) GROUP BY nsid ORDER BY nsid`, percent)
	if err != nil {
		return nil, err
	}
	operations := settings.All()
	all := make([]Lifetime, len(operations))
	for n, o := range operations {
		all[n] = Lifetime{Method: o.NSID, LifeSeconds: o.Life.Seconds(), MinSeconds: o.Least.Life.Seconds(),
			LeaseSeconds: o.Lease.Seconds()}
	}
	for _, c := range counts {
		n := slices.IndexFunc(all, func(l Lifetime) bool { return l.Method == c.Method })
		if n < 0 {
			n = len(all)
			all = append(all, Lifetime{Method: c.Method, LifeSeconds: all[0].LifeSeconds, LeaseSeconds: all[0].LeaseSeconds})
		}
		l := &all[n]
		l.Records, l.Expired, l.AnswerBytes = scaled(c.Records, percent), scaled(c.Expired, percent), scaled(c.Bytes, percent)
		l.MeanSeconds, l.NextSeconds, l.OldestSeconds = c.Mean, c.Next, c.Oldest
	}
	all[0].Method = defaultMethods
	return all, nil
}
