package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/network"
)

// BlockActor: blue.catbird.mls.blockActor. A request without a key is safe to repeat: the block's
// row exists only once, and a declined invitation is no longer open.
func (h *handlers) BlockActor(c *call, in *mlsapi.BlockActorInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	return h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		at, err := convos.Block(ctx, tx, c.caller, in.DID)
		if err == nil {
			err = network.Refuse(ctx, tx, c.caller, in.DID)
		}
		return &mlsapi.BlockActorOutput{BlockedAt: lexcodec.NewDatetime(at)}, err
	})
}
