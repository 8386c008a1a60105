package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/people/consent"
)

// UnblockActor: blue.catbird.mls.unblockActor.
func (h *handlers) UnblockActor(c *call, in *mlsapi.UnblockActorInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	return h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		return &mlsapi.UnblockActorOutput{Success: true}, consent.Unblock(ctx, tx, c.caller, in.DID)
	})
}
