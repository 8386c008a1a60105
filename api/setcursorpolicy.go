package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/people/consent"
)

// SetCursorPolicy: blue.catbird.mls.setCursorPolicy.
func (h *handlers) SetCursorPolicy(c *call, in *mlsapi.SetCursorPolicyInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	return h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		return &mlsapi.SetCursorPolicyOutput{ShareCursors: in.ShareCursors},
			consent.ShareCursors(ctx, tx, c.caller, consent.Sharing(in.ShareCursors))
	})
}
