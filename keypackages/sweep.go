package keypackages

import (
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/worker"
)

const (
	// KeepEnded is how long a KeyPackage is kept after it was consumed, expired or orphaned. During
	// this time, the service refuses a Welcome that names it, and tells its state. It still accepts
	// a Welcome by the caller whose claim lapsed.
	KeepEnded = 30 * 24 * time.Hour
	// keepSignal is how long a signal is kept.
	keepSignal = 30 * 24 * time.Hour
)

// endClaimsSQL ends lapsed claims.
//
//go:embed end_claims.sql
var endClaimsSQL string

// Sweeps update the stored states of KeyPackages by the clock, signal lapsed claims to the owners,
// and delete what is no longer needed.
func Sweeps(db *pgxpool.Pool) []worker.Sweep {
	return []worker.Sweep{
		worker.Statement(db, "key_packages_expired", `
			UPDATE key_packages SET state = 'expired'
			WHERE (did, ref) IN (
				SELECT did, ref FROM key_packages
				WHERE state = 'available' AND claimed_by IS NULL AND not_after <= now()
				ORDER BY not_after LIMIT $1 FOR UPDATE SKIP LOCKED)`),
		worker.Statement(db, "key_packages_orphaned", endClaimsSQL),
		worker.Statement(db, "key_packages_deleted", `
			DELETE FROM key_packages
			WHERE (did, ref) IN (
				SELECT did, ref FROM key_packages
				WHERE state IN ('consumed', 'expired', 'orphaned')
					AND coalesce(consumed_at, claim_expires_at, not_after) <= now() - $2::interval
				ORDER BY coalesce(consumed_at, claim_expires_at, not_after) LIMIT $1 FOR UPDATE SKIP LOCKED)`, KeepEnded),
		worker.Statement(db, "key_package_signals", `
			DELETE FROM key_package_signals
			WHERE (did, device_id, cipher_suite, kind) IN (
				SELECT did, device_id, cipher_suite, kind FROM key_package_signals
				WHERE raised_at <= now() - $2::interval
				ORDER BY raised_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, keepSignal),
	}
}
