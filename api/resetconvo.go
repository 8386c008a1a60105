package api

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/features/transparency"
	"mlsd/people/quota"
)

// ResetConvo: blue.catbird.mls.resetConvo.
func (h *handlers) ResetConvo(c *call, in *mlsapi.ResetConvoInput) error {
	key, convo, err := c.keyAndConvo(in.IdempotencyKey, in.ConvoID)
	if err != nil {
		return err
	}
	if strings.ContainsFunc(in.Reason, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }) {
		return lexcodec.Malformed("reason", "must be letters only, such as forked", in.Reason)
	}
	input := content(in.Fields())
	key = input.KeyOr(key)
	reset := convos.Reset{
		ConvoID: convo, Caller: c.caller, Reason: in.Reason, GroupInfo: in.GroupInfo, Welcome: in.WelcomeMessage,
		Hash: input.Hash(), Root: transparency.Root,
	}
	var receipts foreign
	// Slow work is done before the transaction, unless the transaction will refuse the caller or
	// has succeeded before.
	open, err := convos.IsOpen(c.ctx, h.DB, convo, c.caller)
	if err != nil {
		return err
	}
	if open {
		if receipts, err = h.receipts(c, in.Receipts); err != nil {
			return err
		}
		reset.Foreign = receipts.all
		if _, err := h.Heads.Keep(c.ctx, []uuid.UUID{convo}); err != nil {
			return err
		}
		if err := h.verify(c, len(in.GroupInfo), reset.Judge); err != nil {
			return err
		}
	}
	c.uses(quota.Convos, 1)
	c.uses(quota.Resets, 1)
	c.uses(quota.Bytes, len(in.WelcomeMessage)+len(in.GroupInfo))
	return h.write(c, convo.String(), key, input, func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		if receipts.refused != nil {
			return nil, receipts.refused
		}
		successor, err := convos.ResetConvo(ctx, tx, reset)
		if err != nil {
			return nil, err
		}
		c.quota.Count(quota.Cost{Of: quota.Bytes, N: int64(rosterBytes * len(successor.Members))})
		return &mlsapi.ResetConvoOutput{Convo: *view(successor)}, nil
	})
}
