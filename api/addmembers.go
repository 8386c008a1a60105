package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/people/quota"
)

// AddMembers: blue.catbird.mls.addMembers.
func (h *handlers) AddMembers(c *call, in *mlsapi.AddMembersInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	input := content(in.Fields())
	key = input.KeyOr(key)
	add := convos.AddMembers{
		ConvoID: convo, Caller: c.caller, DIDs: in.DIDList,
		Proposed: c.proposed(key, input, in.Commit, in.WelcomeMessage, in.GroupInfo),
	}
	receipts, err := h.receipts(c, in.Receipts)
	if err != nil {
		return err
	}
	add.Foreign = receipts.all
	c.uses(quota.Bytes, rosterBytes*len(in.DIDList))
	return h.commit(c, convo, key, input, func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		if receipts.refused != nil {
			return nil, receipts.refused
		}
		add.Quota = c.quota
		advanced, err := convos.Add(ctx, tx, add)
		return &mlsapi.AddMembersOutput{Success: true, NewEpoch: advanced.Epoch, Seq: &advanced.Seq}, err
	})
}
