package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// DemoteAdmin: blue.catbird.mls.demoteAdmin. A request without a key is safe to repeat, because the member
// has the role already.
func (h *handlers) DemoteAdmin(c *call, in *mlsapi.DemoteAdminInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	change := convos.RoleChange{ConvoID: convo, Caller: c.caller, Target: in.DID, Promote: false}
	return h.write(c, convo.String(), key, content(in.Fields()),
		func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			return &mlsapi.DemoteAdminOutput{Success: true}, convos.ChangeRole(ctx, tx, change)
		})
}
