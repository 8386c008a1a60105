package keypackages

import (
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
)

// Take hands out one KeyPackage for each device of each DID, and names the DIDs that have none. A one-time KeyPackage goes to
// one caller only: concurrent claims pass over each other's rows (SKIP LOCKED), and a claimed row is never available again. A
// device without a one-time KeyPackage is served its last-resort one, which is read without a lock, so that a busy row cannot
// hide it. Expired ones are never served.
func Take(ctx context.Context, tx pgx.Tx, c Claim) (claimed []Claimed, missing []syntax.DID, err error) {
	oneTime, err := claimOneTime(ctx, tx, c)
	if err != nil {
		return nil, nil, fmt.Errorf("claim KeyPackages: %w", err)
	}
	lastResort, err := lastResort(ctx, tx, c, oneTime)
	if err != nil {
		return nil, nil, fmt.Errorf("read last-resort KeyPackages: %w", err)
	}
	byDID := map[syntax.DID][]Claimed{}
	for _, k := range append(oneTime, lastResort...) {
		byDID[k.DID] = append(byDID[k.DID], k)
	}
	seen := map[syntax.DID]bool{}
	for _, did := range c.DIDs {
		if seen[did] {
			continue
		}
		seen[did] = true
		if len(byDID[did]) == 0 {
			missing = append(missing, did)
		}
		claimed = append(claimed, byDID[did]...)
	}
	return claimed, missing, nil
}

func claimOneTime(ctx context.Context, tx pgx.Tx, c Claim) ([]Claimed, error) {
	rows, err := tx.Query(ctx, `
		WITH device AS MATERIALIZED (
			SELECT did, device_id, min(cipher_suite) AS cipher_suite,
				row_number() OVER (PARTITION BY did ORDER BY max(created_at) DESC) AS nth
			FROM key_packages
			WHERE did = ANY($1) AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()
				AND ($2 = 0 OR cipher_suite = $2)
			GROUP BY did, device_id
			ORDER BY nth LIMIT $6
		), pick AS MATERIALIZED (
			SELECT k.did, k.ref
			FROM (SELECT * FROM device WHERE nth <= $7) d CROSS JOIN LATERAL (
				SELECT did, ref FROM key_packages
				WHERE did = d.did AND device_id = d.device_id AND cipher_suite = d.cipher_suite
					AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()
				ORDER BY created_at LIMIT 1
				FOR UPDATE SKIP LOCKED
			) k
		)
		UPDATE key_packages k
		SET state = 'claimed', claimed_by = $3, claim_convo_id = $4, claimed_at = clock_timestamp(),
			claim_expires_at = date_trunc('milliseconds', clock_timestamp() + $5::interval)
		FROM pick WHERE (k.did, k.ref) = (pick.did, pick.ref)
		RETURNING k.did, k.device_id, k.ref, k.cipher_suite, k.body, k.claim_expires_at`,
		c.DIDs, int32(c.CipherSuite), c.Caller, c.ConvoID, claimLifetime, maxClaimed, maxDevices)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Claimed, err error) {
		err = row.Scan(&k.DID, &k.DeviceID, &k.Ref, &k.CipherSuite, &k.Body, &k.ExpiresAt)
		return k, err
	})
}

// Bounds of one answer, whoever has published how many devices: so many of a DID, those that published last first, and so many
// in all, of which each DID gets one before any gets two.
const (
	maxDevices = 20
	maxClaimed = 500
)

// lastResort returns the newest last-resort KeyPackage of each device that has not been served a one-time one.
func lastResort(ctx context.Context, tx pgx.Tx, c Claim, served []Claimed) ([]Claimed, error) {
	devices := make([]string, len(served))
	for i, k := range served {
		devices[i] = k.DID.String() + " " + k.DeviceID
	}
	rows, err := tx.Query(ctx, `
		SELECT did, device_id, ref, cipher_suite, body
		FROM (
			SELECT *, row_number() OVER (PARTITION BY did ORDER BY created_at DESC) AS nth
			FROM (
				SELECT DISTINCT ON (did, device_id) did, device_id, ref, cipher_suite, body, created_at
				FROM key_packages
				WHERE did = ANY($1) AND state = 'available' AND last_resort AND not_after > clock_timestamp()
					AND ($2 = 0 OR cipher_suite = $2) AND did || ' ' || device_id <> ALL($3)
				ORDER BY did, device_id, cipher_suite, created_at DESC
			) newest
		) ranked
		WHERE nth <= $5
		ORDER BY nth LIMIT $4`,
		c.DIDs, int32(c.CipherSuite), devices, maxClaimed-len(served), maxDevices)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k Claimed, err error) {
		k.LastResort = true
		err = row.Scan(&k.DID, &k.DeviceID, &k.Ref, &k.CipherSuite, &k.Body)
		return k, err
	})
}
