package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/people/consent"
)

// SetInvitationPolicy: blue.catbird.mls.setInvitationPolicy.
func (h *handlers) SetInvitationPolicy(c *call, in *mlsapi.SetInvitationPolicyInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	return h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		return &mlsapi.SetInvitationPolicyOutput{Policy: in.Policy},
			consent.SetPolicy(ctx, tx, c.caller, consent.Policy(in.Policy))
	})
}
