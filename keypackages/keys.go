package keypackages

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/idem"
	"mlsd/internal/nsid"
)

// RetireKeys retires the keys with which KeyPackages were published. It implements [idem.Retire].
func RetireKeys(ctx context.Context, tx pgx.Tx, keys []idem.UsedKey) error {
	var owners, used []string
	for _, k := range keys {
		if k.NSID == nsid.PublishKeyPackage {
			owners, used = append(owners, k.Caller), append(used, k.Key)
		}
	}
	if len(used) == 0 {
		return nil
	}
	// The rows are locked in the order in which Consume locks rows.
	_, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT did, ref FROM key_packages
			WHERE (did, ref) IN (
				SELECT p.did, p.ref
				FROM unnest($1::text[], $2::text[]) AS k (did, key)
				CROSS JOIN LATERAL (
					SELECT did, ref FROM key_packages WHERE did = k.did AND idempotency_key = k.key AND NOT key_retired LIMIT 1
				) p)
			ORDER BY did, ref FOR UPDATE
		)
		UPDATE key_packages p SET key_retired = true FROM locked WHERE p.did = locked.did AND p.ref = locked.ref`, owners,
		used)
	return err
}
