package api

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/welcome"
)

// GetWelcome: blue.catbird.mls.getWelcome. A query by its verb, but it opens a lease.
func (h *handlers) GetWelcome(c *call, p *mlsapi.GetWelcomeParams) error {
	convo, err := convoID(p.ConvoID)
	if err != nil {
		return err
	}
	device, err := c.device(p.DeviceID, p.KeyPackageRef)
	if err != nil {
		return err
	}
	w, err := h.desk.Fetch(c.ctx, convo, device)
	if err == nil {
		return c.reply(delivered(p.ConvoID, w))
	}
	if !errors.Is(err, welcome.ErrAside) {
		return err
	}
	return h.write(c, p.ConvoID, "", nil, func(ctx context.Context, tx pgx.Tx) (mlsapi.Appender, error) {
		if _, err := convos.Authorise(ctx, tx, convo, c.caller); err != nil {
			return nil, err
		}
		w, err := h.welcomes.Fetch(ctx, tx, convo, device)
		if err != nil {
			return nil, err
		}
		return delivered(p.ConvoID, w), nil
	})
}

// delivered encodes a Welcome.
func delivered(convo string, w welcome.Delivery) *mlsapi.GetWelcomeOutput {
	ref, state, grace := w.KeyPackageRef.String(), string(w.State), mlsapi.NewDatetime(w.GraceExpiresAt)
	return &mlsapi.GetWelcomeOutput{
		ConvoID: convo, Welcome: w.Body, KeyPackageRef: &ref, State: &state, GraceExpiresAt: &grace, Epoch: &w.Epoch,
	}
}
