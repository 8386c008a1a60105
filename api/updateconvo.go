package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// UpdateConvo: blue.catbird.mls.updateConvo. A request without a key is safe to repeat, because the
// convo has the name already.
func (h *handlers) UpdateConvo(c *call, in *mlsapi.UpdateConvoInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	labels := convos.Labels{
		ConvoID: convo, Caller: c.caller, Name: in.Metadata.Name, Description: in.Metadata.Description,
	}
	return h.write(c, convo.String(), key, content(in.Fields()),
		func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			updated, err := convos.Update(ctx, tx, labels)
			if err != nil {
				return nil, err
			}
			return &mlsapi.UpdateConvoOutput{Convo: *view(updated)}, nil
		})
}
