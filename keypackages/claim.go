package keypackages

import (
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
)

// Take hands out one KeyPackage for each device of each DID. A one-time KeyPackage goes to one caller only: concurrent claims
// pass over each other's rows (SKIP LOCKED), and a claimed row is never available again. A device without a one-time KeyPackage,
// or whose Budget the caller has had, is served its last-resort one, which is read without a lock, so that a busy row cannot hide
// it. Expired ones are never served.
func Take(ctx context.Context, tx pgx.Tx, c Claim) (Taken, error) {
	var t taking
	var b pgx.Batch
	b.Queue(lockCaller, c.Caller)
	t.queueOneTime(&b, c)
	t.queueLastResort(&b, c)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return Taken{}, fmt.Errorf("claim KeyPackages: %w", err)
	}
	all := append(t.oneTime, t.lastResort...)
	if err := raise(ctx, tx, all); err != nil {
		return Taken{}, fmt.Errorf("signal a claim: %w", err)
	}
	return c.sort(all, t.limited), nil
}

// sort puts what was served into the order of the DIDs asked for.
func (c Claim) sort(all []served, limited map[syntax.DID]bool) (t Taken) {
	byDID := map[syntax.DID][]Claimed{}
	for _, s := range all {
		byDID[s.DID] = append(byDID[s.DID], s.Claimed)
	}
	seen := map[syntax.DID]bool{}
	for _, did := range c.DIDs {
		if seen[did] {
			continue
		}
		seen[did] = true
		if len(byDID[did]) == 0 {
			t.Missing = append(t.Missing, did)
		}
		if limited[did] {
			t.Limited = append(t.Limited, did)
		}
		t.Claimed = append(t.Claimed, byDID[did]...)
	}
	return t
}

// served is a KeyPackage handed out, and the signal that this may call for.
type served struct {
	Claimed
	signal string // "" for none
}

// lockCaller lets a caller's claims run one after the other, on all nodes: what one has cost its budget, the next must see. One
// lock, not one for each DID asked for: those of a few large claims at once would fill the server's lock table.
const lockCaller = `SELECT pg_advisory_xact_lock(hashtextextended('key_package_claims:' || $1::text, 0))`

// taking is a claim under way, all of it in one round trip.
type taking struct {
	oneTime    []served
	lastResort []served
	limited    map[syntax.DID]bool // DIDs of which a device has one-time KeyPackages that are not for the caller, for now
}

// queueOneTime also leaves a note in the transaction of the devices that it serves.
func (t *taking) queueOneTime(b *pgx.Batch, c Claim) {
	b.Queue(`
		WITH stock AS (
			SELECT did, device_id, cipher_suite, count(*) AS available,
				max(max(created_at)) OVER (PARTITION BY did, device_id) AS published_at
			FROM key_packages
			WHERE did = ANY($1) AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()
				AND ($2 = 0 OR cipher_suite = $2)
			GROUP BY did, device_id, cipher_suite
		), device AS MATERIALIZED (
			SELECT did, device_id, cipher_suite, available, (
					SELECT count(*) FROM key_packages
					WHERE did = d.did AND device_id = d.device_id AND claimed_by = $3
						AND claimed_at > statement_timestamp() - $9::interval
				) >= $8 AS limited
			FROM (
				SELECT *, row_number() OVER (PARTITION BY did ORDER BY published_at DESC) AS nth
				FROM (SELECT DISTINCT ON (did, device_id) * FROM stock ORDER BY did, device_id, cipher_suite) lowest_suite
				ORDER BY nth LIMIT $6
			) d
			WHERE nth <= $7
		), pick AS MATERIALIZED (
			SELECT k.did, k.ref, d.available
			FROM (SELECT * FROM device WHERE NOT limited) d CROSS JOIN LATERAL (
				SELECT did, ref FROM key_packages
				WHERE did = d.did AND device_id = d.device_id AND cipher_suite = d.cipher_suite
					AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()
				ORDER BY created_at LIMIT 1
				FOR UPDATE SKIP LOCKED
			) k
		), claimed AS (
			UPDATE key_packages k
			SET state = 'claimed', claimed_by = $3, claim_convo_id = $4, claimed_at = clock_timestamp(),
				claim_expires_at = date_trunc('milliseconds', clock_timestamp() + $5::interval)
			FROM pick WHERE (k.did, k.ref) = (pick.did, pick.ref)
			RETURNING k.did, k.device_id, k.ref, k.cipher_suite, k.body, k.claim_expires_at, pick.available - 1 AS still_available
		), noted AS MATERIALIZED (
			SELECT set_config('mlsd.served', coalesce(array_agg(did || ' ' || device_id), '{}')::text, true) FROM claimed
		)
		SELECT false, did, device_id, ref, cipher_suite, body, claim_expires_at, CASE WHEN still_available < $10 AND NOT EXISTS (
				SELECT FROM key_package_signals s
				WHERE (s.did, s.device_id, s.cipher_suite, s.kind) = (claimed.did, claimed.device_id, claimed.cipher_suite, 'low')
			) THEN 'low' ELSE '' END
		FROM claimed
		UNION ALL
		SELECT true, did, device_id, NULL, cipher_suite, NULL, NULL, '' FROM device WHERE limited
		UNION ALL
		SELECT NULL, '', '', NULL, 0, NULL, NULL, '' FROM noted`,
		c.DIDs, int32(c.CipherSuite), c.Caller, c.ConvoID, claimLifetime, maxClaimed, maxDevices, Budget, budgetPeriod,
		Threshold+thresholdMargin,
	).Query(func(rows pgx.Rows) error {
		t.limited = map[syntax.DID]bool{}
		for rows.Next() {
			var s served
			var refused *bool
			err := rows.Scan(&refused, &s.DID, &s.DeviceID, &s.Ref, &s.CipherSuite, &s.Body, &s.ExpiresAt, &s.signal)
			if err != nil {
				return err
			}
			switch {
			case refused == nil: // the note
			case *refused:
				t.limited[s.DID] = true
			default:
				t.oneTime = append(t.oneTime, s)
			}
		}
		return rows.Err()
	})
}

// Bounds of one answer, whoever has published how many devices: so many of a DID, those that published last first, and so many
// in all, of which each DID gets one before any gets two.
const (
	maxDevices = 20
	maxClaimed = 500
)

// queueLastResort reads the newest last-resort KeyPackage of each device that has not been served a one-time one.
func (t *taking) queueLastResort(b *pgx.Batch, c Claim) {
	b.Queue(`
		WITH served AS MATERIALIZED (
			SELECT current_setting('mlsd.served')::text[] AS devices
		)
		SELECT did, device_id, ref, cipher_suite, body, CASE WHEN NOT EXISTS (
				SELECT FROM key_package_signals s
				WHERE (s.did, s.device_id, s.cipher_suite, s.kind) = (ranked.did, ranked.device_id, ranked.cipher_suite, 'last_resort')
			) THEN 'last_resort' ELSE '' END
		FROM (
			SELECT *, row_number() OVER (PARTITION BY did ORDER BY created_at DESC) AS nth
			FROM (
				SELECT DISTINCT ON (did, device_id) did, device_id, ref, cipher_suite, body, created_at
				FROM key_packages
				WHERE did = ANY($1) AND state = 'available' AND last_resort AND not_after > clock_timestamp()
					AND ($2 = 0 OR cipher_suite = $2) AND did || ' ' || device_id <> ALL((SELECT devices FROM served)::text[])
				ORDER BY did, device_id, cipher_suite, created_at DESC
			) newest
		) ranked
		WHERE nth <= $4
		ORDER BY nth LIMIT $3 - (SELECT cardinality(devices) FROM served)`,
		c.DIDs, int32(c.CipherSuite), maxClaimed, maxDevices,
	).Query(func(rows pgx.Rows) (err error) {
		t.lastResort, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (k served, err error) {
			k.LastResort = true
			err = row.Scan(&k.DID, &k.DeviceID, &k.Ref, &k.CipherSuite, &k.Body, &k.signal)
			return k, err
		})
		return err
	})
}
