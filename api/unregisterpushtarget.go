package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/push"
)

// UnregisterPushTarget: blue.catbird.mls.unregisterPushTarget.
func (h *handlers) UnregisterPushTarget(c *call, in *mlsapi.UnregisterPushTargetInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	if err := c.actsFor(&in.DeviceID); err != nil {
		return err
	}
	return h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		removed, err := push.Unregister(ctx, tx, c.caller, in.DeviceID)
		return &mlsapi.UnregisterPushTargetOutput{Removed: removed}, err
	})
}
