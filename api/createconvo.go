package api

import (
	"context"
	"encoding/hex"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/people/quota"
)

// CreateConvo: blue.catbird.mls.createConvo.
func (h *handlers) CreateConvo(c *call, in *mlsapi.CreateConvoInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	suite, err := cipherSuite(in.CipherSuite)
	if err != nil {
		return err
	}
	groupID, err := hex.DecodeString(in.GroupID)
	if err != nil || len(groupID) == 0 || hex.EncodeToString(groupID) != in.GroupID {
		return lexcodec.Malformed("groupId", "must be lower-case hexadecimal of whole bytes", in.GroupID)
	}
	input := content(in.Fields())
	key = input.KeyOr(key)
	n := convos.NewConvo{
		Creator: c.caller, GroupID: groupID, CipherSuite: suite, Members: in.InitialMembers, Welcome: in.WelcomeMessage,
		GroupInfo: in.GroupInfo, CurrentEpoch: in.CurrentEpoch, Key: key,
	}
	receipts, err := h.receipts(c, in.Receipts)
	if err != nil {
		return err
	}
	n.Foreign = receipts.all
	if in.Metadata != nil {
		n.Name, n.Description = in.Metadata.Name, in.Metadata.Description
	}
	c.uses(quota.Convos, 1)
	c.uses(quota.Bytes, len(in.WelcomeMessage)+len(in.GroupInfo)+rosterBytes*(1+len(in.InitialMembers)))
	if n.GroupInfo != nil {
		if err := h.verify(c, len(n.GroupInfo), n.Judge); err != nil {
			return err
		}
	}
	return h.write(c, "", key, input, func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		if receipts.refused != nil {
			return nil, receipts.refused
		}
		n.Quota = c.quota
		convo, err := convos.Create(ctx, tx, n)
		return view(convo), err
	})
}
