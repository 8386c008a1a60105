package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// ProcessExternalCommit: blue.catbird.mls.processExternalCommit.
func (h *handlers) ProcessExternalCommit(c *call, in *mlsapi.ProcessExternalCommitInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	input := content(in.Fields())
	key = input.KeyOr(key)
	s := convos.Submission{
		ConvoID: convo, Caller: c.caller, Device: c.sessionDevice(),
		Proposed: c.proposed(key, input, in.Commit, nil, in.GroupInfo),
	}
	return h.commit(c, convo, key, input, func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		advanced, err := convos.Rejoin(ctx, tx, s)
		return &mlsapi.ProcessExternalCommitOutput{NewEpoch: advanced.Epoch, Seq: advanced.Seq}, err
	})
}
