package usage

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

// Erase moves the counts of a caller into the rows of all others, and returns how many rows it has
// deleted. The transaction must be one of maintenance.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person) (int64, error) {
	// A Flush writes many rows. It has this lock too.
	if err := pgpool.LockUsage.Wait(ctx, tx, ""); err != nil {
		return 0, err
	}
	var n int64
	err := tx.QueryRow(ctx, `
		WITH gone AS (
			DELETE FROM caller_counts WHERE caller_did = $1 RETURNING hour, kind, nsid, n, seconds
		), moved AS (
			INSERT INTO caller_counts AS c (hour, kind, caller_did, nsid, n, seconds, weight)
			SELECT hour, kind, '', nsid, n, seconds, 0 FROM gone
			ON CONFLICT (hour, kind, caller_did, nsid) DO UPDATE SET n = c.n + excluded.n, seconds = c.seconds + excluded.seconds
		)
		SELECT count(*) FROM gone`, p.DID).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("erase a caller's counts: %w", err)
	}
	return n, nil
}
