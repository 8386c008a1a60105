package api

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/welcome"
)

// ConfirmWelcome: blue.catbird.mls.confirmWelcome. Its guard is the Welcome's state.
func (h *handlers) ConfirmWelcome(c *call, in *mlsapi.ConfirmWelcomeInput) error {
	convo, err := convoID(in.ConvoID)
	if err != nil {
		return err
	}
	device, err := c.device(in.DeviceID, in.KeyPackageRef)
	if err != nil {
		return err
	}
	details := ""
	if in.ErrorDetails != nil {
		details = *in.ErrorDetails
	}
	state, err := h.desk.Confirm(c.ctx, convo, device, in.Success, details)
	if err == nil {
		text := string(state)
		return c.reply(&mlsapi.ConfirmWelcomeOutput{Confirmed: true, State: &text})
	}
	if !errors.Is(err, welcome.ErrAside) {
		return err
	}
	return h.write(c, in.ConvoID, "", nil, func(ctx context.Context, tx pgx.Tx) (mlsapi.Appender, error) {
		if _, err := convos.Authorise(ctx, tx, convo, c.caller); err != nil {
			return nil, err
		}
		state, err := h.welcomes.Confirm(ctx, tx, convo, device, in.Success, details)
		if err != nil {
			return nil, err
		}
		text := string(state)
		return &mlsapi.ConfirmWelcomeOutput{Confirmed: true, State: &text}, nil
	})
}
