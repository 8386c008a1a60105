package api

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/archive"
	"mlsd/features/erasure"
	"mlsd/people/accounts"
)

// EraseMyAccount: blue.catbird.mls.eraseMyAccount.
//
// The used token is the record of the request, because the erasure deletes the account's other
// records. A repeated request gets the first answer, whatever its key is, even after the erasure
// has ended.
func (h *handlers) EraseMyAccount(c *call, in *mlsapi.EraseMyAccountInput) error {
	key, err := c.key(in.IdempotencyKey)
	if err != nil {
		return err
	}
	if in.ConfirmationToken != nil {
		begun, err := h.Erasures.Confirmed(c.ctx, h.DB, c.caller, *in.ConfirmationToken)
		if err == nil {
			c.replayed = true
			return c.reply(erasing(begun))
		}
		if !errors.Is(err, erasure.ErrConfirmation) {
			return err
		}
	}
	if c.standing != nil && c.standing.Status == accounts.Erasing {
		return c.standing
	}
	err = h.write(c, "", key, content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		if in.ConfirmationToken == nil {
			return h.askToErase(ctx, tx, c)
		}
		begun, err := h.Erasures.Confirm(ctx, tx, c.caller, *in.ConfirmationToken)
		return erasing(begun), err
	})
	if err == nil && in.ConfirmationToken != nil {
		h.Erasing()
	}
	return err
}

// askToErase performs the first step: it returns the token that confirms the erasure.
func (h *handlers) askToErase(ctx context.Context, tx pgx.Tx, c *call) (lexcodec.Appender, error) {
	held, err := archive.Count(ctx, tx, c.caller)
	if err != nil {
		return nil, err
	}
	token, expires, err := h.Erasures.AskToConfirm(ctx, tx, c.caller)
	if err != nil {
		return nil, err
	}
	return &mlsapi.EraseMyAccountOutput{
		ConfirmationToken: &token, ExpiresAt: lexcodec.Pointer(lexcodec.NewDatetime(expires)),
		Held: &mlsapi.HeldCounts{
			Convos: held.Convos, KeyPackages: held.KeyPackages, Devices: held.Devices, PushTargets: held.PushTargets,
			PendingWelcomes: held.PendingWelcomes,
		},
	}, nil
}

// erasing returns the answer to the second step.
func erasing(b erasure.Begun) *mlsapi.EraseMyAccountOutput {
	return &mlsapi.EraseMyAccountOutput{
		Erasing: true, ErasureID: lexcodec.Pointer(b.ID.String()), BegunAt: lexcodec.Pointer(lexcodec.NewDatetime(b.At)),
	}
}
