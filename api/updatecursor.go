package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// UpdateCursor: blue.catbird.mls.updateCursor. Its guard is the maximum: saying it again changes nothing.
func (h *handlers) UpdateCursor(c *call, in *mlsapi.UpdateCursorInput) error {
	convo, err := convoID(in.ConvoID)
	if err != nil {
		return err
	}
	return h.write(c, in.ConvoID, "", nil, func(ctx context.Context, tx pgx.Tx) (mlsapi.Appender, error) {
		seq, err := convos.UpdateCursor(ctx, tx, convo, c.caller, in.Seq)
		if err != nil {
			return nil, err
		}
		return &mlsapi.UpdateCursorOutput{Seq: seq}, nil
	})
}
