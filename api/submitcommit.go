package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// SubmitCommit: blue.catbird.mls.submitCommit.
func (h *handlers) SubmitCommit(c *call, in *mlsapi.SubmitCommitInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	input := content(in.Fields())
	key = input.KeyOr(key)
	s := convos.Submission{
		ConvoID: convo, Caller: c.caller,
		Proposed: c.proposed(key, input, in.Commit, in.WelcomeMessage, in.GroupInfo),
	}
	receipts, err := h.receipts(c, in.Receipts)
	if err != nil {
		return err
	}
	s.Foreign = receipts.all
	return h.commit(c, convo, key, input, func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		if receipts.refused != nil {
			return nil, receipts.refused
		}
		advanced, err := convos.Submit(ctx, tx, s)
		return &mlsapi.SubmitCommitOutput{NewEpoch: advanced.Epoch, Seq: advanced.Seq}, err
	})
}
