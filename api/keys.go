package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/idem"
	"mlsd/keypackages"
	"mlsd/messages"
)

// RetireKeys implements [idem.Retire] for all methods: it retires the keys of convos, commits and
// KeyPackages.
func RetireKeys(ctx context.Context, tx pgx.Tx, keys []idem.UsedKey) error {
	for _, retire := range []idem.Retire{convos.RetireKeys, messages.RetireKeys, keypackages.RetireKeys} {
		if err := retire(ctx, tx, keys); err != nil {
			return err
		}
	}
	return nil
}
