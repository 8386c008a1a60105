package convos

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/idem"
	"mlsd/internal/nsid"
)

// RetireKeys retires the keys with which convos were created. It implements [idem.Retire].
func RetireKeys(ctx context.Context, tx pgx.Tx, keys []idem.UsedKey) error {
	var creators, used []string
	for _, k := range keys {
		if k.NSID == nsid.CreateConvo {
			creators, used = append(creators, k.Caller), append(used, k.Key)
		}
	}
	if len(used) == 0 {
		return nil
	}
	// The rows are locked in the order in which batches of messages lock them.
	_, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT id FROM convos
			WHERE id = ANY (ARRAY(
				SELECT c.id
				FROM unnest($1::text[], $2::text[]) AS k (creator_did, key)
				CROSS JOIN LATERAL (
					SELECT id FROM convos WHERE creator_did = k.creator_did AND idempotency_key = k.key AND NOT key_retired LIMIT 1
				) c))
			ORDER BY id FOR NO KEY UPDATE
		)
		UPDATE convos SET key_retired = true WHERE id = ANY (ARRAY(SELECT id FROM locked))`, creators, used)
	return err
}
