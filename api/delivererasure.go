package api

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/people/accounts"
)

// DeliverErasure: blue.catbird.mls.deliverErasure. A person's home calls it. If the service erases
// the person already, a repeated call begins nothing.
func (h *handlers) DeliverErasure(c *call, in *mlsapi.DeliverErasureInput) error {
	err := c.outside(func() error {
		return h.find(c, 1, func() error {
			if _, err := h.Network.Peer(c.ctx, c.caller); err != nil {
				return err
			}
			return h.Network.CheckHome(c.ctx, c.caller, in.DID)
		})
	})
	if err != nil {
		return err
	}
	// If the operator has blocked the person here, only the operator erases the data.
	if err := h.Gate.Check(c.ctx, in.DID); errors.Is(err, accounts.ErrBlocked) || errors.Is(err, accounts.ErrUnavailable) {
		return err
	}
	err = h.write(c, "", "", content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		return &mlsapi.DeliverErasureOutput{Success: true}, h.Erasures.BeginForHome(ctx, tx, in.DID, c.caller)
	})
	if err == nil {
		h.Erasing()
	}
	return err
}
