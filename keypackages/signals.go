package keypackages

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/outbox"
)

// A signal tells the owner of a stock, which is a device's KeyPackages of one suite, that something needs doing. It is raised in
// the transaction that brings the thing about, and is there once however often it comes about:
//
//	low          a claim has left fewer than Threshold one-time ones   until enough are published
//	last_resort  the last-resort one was served                        until anything is published
//	orphaned     claims have lapsed                                    its count goes up
//
// Every signal is forgotten after a while: what is still so is then signalled anew.
//
// low and last_resort are raised and closed under the owner's lock, so that a publication and a claim that cross see each
// other's.

// thresholdMargin is how many claims of one stock may run at once, unseen by each other, without the signal coming late, which
// is with the next claim. Claims of a stock that has so many more than Threshold neither take its owner's lock nor look again.
const thresholdMargin = 10

// lockOwners lets the publications of an owner, and what signals the state of its stock, run one after the other. Locks are
// taken in one order.
const lockOwners = `
	SELECT pg_advisory_xact_lock(key) FROM (
		SELECT DISTINCT hashtextextended('key_packages:' || did, 0) AS key FROM unnest($1::text[]) AS did ORDER BY key
	) locks`

// raise records the signals that a claim calls for. Those of a stock that was low, or down to its last resort, before the claim
// are not among them: such claims do not wait for each other.
func raise(ctx context.Context, tx pgx.Tx, all []served) error {
	var owners, devices, kinds []string
	var suites []int32
	for _, s := range all {
		if s.signal != "" {
			owners, devices = append(owners, s.DID.String()), append(devices, s.DeviceID)
			suites, kinds = append(suites, int32(s.CipherSuite)), append(kinds, s.signal)
		}
	}
	if len(owners) == 0 {
		return nil
	}
	var b pgx.Batch
	b.Queue(lockOwners, owners)
	b.Queue(`
		WITH noted AS (
			INSERT INTO key_package_signals (did, device_id, cipher_suite, kind, count, raised_at)
			SELECT did, device_id, cipher_suite, kind, available, clock_timestamp()
			FROM (
				SELECT s.*, (
					SELECT count(*) FROM key_packages
					WHERE did = s.did AND device_id = s.device_id AND cipher_suite = s.cipher_suite
						AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()
				) AS available
				FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[]) AS s (did, device_id, cipher_suite, kind)
			) counted
			WHERE kind = 'last_resort' OR available < $5
			ORDER BY did, device_id, cipher_suite, kind
			ON CONFLICT DO NOTHING
			RETURNING did, device_id, cipher_suite, kind, count AS available
		)`+outbox.NoteSignals, owners, devices, suites, kinds, Threshold)
	return tx.SendBatch(ctx, &b).Close()
}

// closeSignals ends the signals of the stocks that a publication has filled up. It is for a statement of its own after the
// publication's, under the owner's lock.
const closeSignals = `
	DELETE FROM key_package_signals s
	USING (
		SELECT DISTINCT device_id, cipher_suite FROM unnest($2::text[], $3::integer[]) AS d (device_id, cipher_suite)
	) published
	WHERE s.did = $1 AND (s.device_id, s.cipher_suite) = (published.device_id, published.cipher_suite)
		AND (s.kind = 'last_resort' OR s.kind = 'low' AND $4 <= (
			SELECT count(*) FROM key_packages
			WHERE did = s.did AND device_id = s.device_id AND cipher_suite = s.cipher_suite
				AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()))`
