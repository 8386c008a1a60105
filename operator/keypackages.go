package operator

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/keypackages"
)

var inspectKeyPackages = question("keypackages", "KeyPackages by state, and DIDs that are running out",
	countKeyPackages)

// KeyPackages counts the KeyPackages by state, and lists stocks that run out.
type KeyPackages struct {
	States    []KeyPackageCount `json:"states"`
	Signals   []SignalCount     `json:"signals"`
	Threshold int               `json:"threshold" text:"-"`
	BelowDIDs int64             `json:"didsBelowThreshold" text:"DIDs below the threshold"`
	Below     []LowStock        `json:"below"`
}

// KeyPackageCount counts the KeyPackages in a state.
type KeyPackageCount struct {
	State string `json:"state"`
	Count int64  `json:"count" text:"KeyPackages"`
}

// SignalCount counts the signals of a kind.
type SignalCount struct {
	State string `json:"state" text:"signal"`
	Count int64  `json:"count" text:"devices"`
}

// LowStock lists the stocks of an account that are below the threshold.
type LowStock struct {
	DID       string `json:"did" text:"DID"`
	Stocks    int64  `json:"stocks" text:"stocks below"` // number of stocks, by device and suite
	Available int64  `json:"available"`                  // in the smallest of these stocks
}

// countKeyPackages reads the whole table. As in getKeyPackageStats, a device has a stock of a suite
// once it has published one-time KeyPackages of that suite.
func countKeyPackages(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (_ any, err error) {
	r := KeyPackages{Threshold: keypackages.Threshold, Below: []LowStock{}}
	r.States, err = list[KeyPackageCount](ctx, tx, `
		SELECT CASE WHEN state = 'available' AND last_resort THEN 'last_resort' ELSE state END, count(*)
		FROM key_packages GROUP BY 1 ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	r.Signals, err = list[SignalCount](ctx, tx,
		`SELECT kind, count(*) FROM key_package_signals GROUP BY kind ORDER BY kind`)
	if err != nil {
		return nil, err
	}
	below, err := list[struct {
		LowStock
		DIDs int64
	}](ctx, tx, `
		WITH stocks AS (
			SELECT did, count(*) FILTER (WHERE state = 'available' AND NOT last_resort AND not_after > now()) AS available
			FROM key_packages GROUP BY did, device_id, cipher_suite HAVING NOT bool_and(last_resort)
		)
		SELECT did, count(*), min(available), count(*) OVER () FROM stocks WHERE available < $1
		GROUP BY did ORDER BY 3, 1 LIMIT $2`, r.Threshold, c.rows())
	for _, b := range below {
		r.Below, r.BelowDIDs = append(r.Below, b.LowStock), b.DIDs
	}
	return r, err
}
