package main

import (
	"context"
	"io"

	"mlsd/keypackages"
)

type keyPackagesReport struct {
	States    []stateCount `json:"states"`
	Signals   []stateCount `json:"signals"`
	Threshold int          `json:"threshold"`
	BelowDIDs int64        `json:"didsBelowThreshold"`
	Below     []lowStock   `json:"below"`
}

type stateCount struct {
	State string `json:"state"`
	Count int64  `json:"count"`
}

type lowStock struct {
	DID       string `json:"did"`
	Stocks    int64  `json:"stocks"`    // of its devices and suites that are below the threshold
	Available int64  `json:"available"` // in the least of them
}

// reportKeyPackages reads the whole table.
func reportKeyPackages(ctx context.Context, i inspection) (report, error) {
	r := keyPackagesReport{Threshold: keypackages.Threshold}
	var err error
	r.States, err = list[stateCount](ctx, i, `
		SELECT CASE WHEN state = 'available' AND last_resort THEN 'last_resort' ELSE state END, count(*)
		FROM key_packages GROUP BY 1 ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	r.Signals, err = list[stateCount](ctx, i, `SELECT kind, count(*) FROM key_package_signals GROUP BY kind ORDER BY kind`)
	if err != nil {
		return nil, err
	}
	// As in getKeyPackageStats, a device has a stock of a suite if it has published one-time
	// KeyPackages of it.
	err = i.tx.QueryRow(ctx, `
		WITH stocks AS (
			SELECT did, count(*) FILTER (WHERE state = 'available' AND NOT last_resort AND not_after > now()) AS available
			FROM key_packages GROUP BY did, device_id, cipher_suite HAVING NOT bool_and(last_resort)
		)
		SELECT count(DISTINCT did) FROM stocks WHERE available < $1`, r.Threshold).Scan(&r.BelowDIDs)
	if err != nil {
		return nil, err
	}
	r.Below, err = list[lowStock](ctx, i, `
		WITH stocks AS (
			SELECT did, count(*) FILTER (WHERE state = 'available' AND NOT last_resort AND not_after > now()) AS available
			FROM key_packages GROUP BY did, device_id, cipher_suite HAVING NOT bool_and(last_resort)
		)
		SELECT did, count(*), min(available) FROM stocks WHERE available < $1
		GROUP BY did ORDER BY 3, 1 LIMIT $2`, r.Threshold, i.rows)
	for n := range r.Below {
		r.Below[n].DID = i.did(r.Below[n].DID)
	}
	return r, err
}

func (r keyPackagesReport) print(w io.Writer) {
	table(w, "state | KeyPackages", r.States, func(c stateCount) []any { return []any{c.State, c.Count} })
	for _, s := range r.Signals {
		line(w, "signal "+s.State, s.Count)
	}
	line(w, "DIDs below the threshold", r.BelowDIDs)
	if len(r.Below) > 0 {
		table(w, "DID | stocks below | available", r.Below, func(s lowStock) []any { return []any{s.DID, s.Stocks, s.Available} })
	}
}
