package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/people/quota"
)

// PublishGroupInfo: blue.catbird.mls.publishGroupInfo. It takes no key: a repeated request in the
// same epoch stores a GroupInfo of the same group.
func (h *handlers) PublishGroupInfo(c *call, in *mlsapi.PublishGroupInfoInput) error {
	convo, err := c.convoID(in.ConvoID)
	if err != nil {
		return err
	}
	c.uses(quota.Bytes, len(in.GroupInfo))
	o := convos.Offer{ConvoID: convo, Caller: c.caller, GroupInfo: in.GroupInfo, Verified: &convos.Verifications{}}
	return h.verified(c, len(in.GroupInfo), func() error {
		return h.write(c, convo.String(), "", nil, func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			epoch, err := convos.PublishGroupInfo(ctx, tx, o)
			return &mlsapi.PublishGroupInfoOutput{Epoch: epoch}, err
		})
	})
}
