package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// AcceptConvo: blue.catbird.mls.acceptConvo. A request without a key is safe to repeat, because the
// member's row changes only once.
func (h *handlers) AcceptConvo(c *call, in *mlsapi.AcceptConvoInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	return h.write(c, convo.String(), key, content(in.Fields()),
		func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			return &mlsapi.AcceptConvoOutput{Accepted: true}, convos.Accept(ctx, tx, convo, c.caller)
		})
}
