package keypackages

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// A signal tells an owner to act on a stock. A stock is all that a device has published in one
// cipher suite. A signal is raised in the transaction that causes it. It is stored once, however
// often its cause recurs:
//
//	low          a claim left fewer than Threshold one-time ones; ends when enough are published
//	last_resort  the last-resort KeyPackage was served; ends when any KeyPackage is published
//	orphaned     claims have lapsed; counts them
//
// A sweep deletes signals after keepSignal. If the cause still exists, the signal is raised again.
//
// low and last_resort are raised and ended under the owner's lock. So a publication and a
// concurrent claim see each other.

// thresholdMargin is how many claims of one stock can run at the same time without seeing each
// other. If a claim leaves at least Threshold plus this margin, it neither locks the owner nor
// counts again. If more claims run at the same time, the next claim raises the signal.
const thresholdMargin = 10

// raiseSQL raises the signals low and last_resort, and inserts their events.
//
//go:embed raise_signals.sql
var raiseSQL string

// raiseSignals raises the signals that a claim has caused. all contains no signal that is raised
// already, so claims of a low stock do not wait for each other.
func raiseSignals(ctx context.Context, tx pgx.Tx, all []served) error {
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
	var batch pgx.Batch
	pgpool.LockStocks.Queue(&batch, owners...)
	batch.Queue(raiseSQL, pgx.NamedArgs{"dids": owners, "devices": devices, "suites": suites, "kinds": kinds,
		"threshold": Threshold})
	return tx.SendBatch(ctx, &batch).Close()
}

// endSignals deletes the signals of the stocks that a publication has filled. It runs under the
// owner's lock, after the publication's own statement.
const endSignals = `
	DELETE FROM key_package_signals s
	USING (
		SELECT DISTINCT device_id, cipher_suite FROM unnest($2::text[], $3::integer[]) AS d (device_id, cipher_suite)
	) published
	WHERE s.did = $1 AND (s.device_id, s.cipher_suite) = (published.device_id, published.cipher_suite)
		AND (s.kind = 'last_resort' OR s.kind = 'low' AND $4 <= (
			SELECT count(*) FROM key_packages
			WHERE did = s.did AND device_id = s.device_id AND cipher_suite = s.cipher_suite
				AND state = 'available' AND NOT last_resort AND not_after > clock_timestamp()))`
