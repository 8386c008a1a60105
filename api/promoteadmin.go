package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// PromoteAdmin: blue.catbird.mls.promoteAdmin. A request without a key is safe to repeat, because the member
// has the role already.
func (h *handlers) PromoteAdmin(c *call, in *mlsapi.PromoteAdminInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	change := convos.RoleChange{ConvoID: convo, Caller: c.caller, Target: in.DID, Promote: true}
	return h.write(c, convo.String(), key, content(in.Fields()),
		func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			return &mlsapi.PromoteAdminOutput{Success: true}, convos.ChangeRole(ctx, tx, change)
		})
}
