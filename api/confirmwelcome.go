package api

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/convos"
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
	answer, err := h.writes.Do(c.ctx, c.write(in.ConvoID, "", nil), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		if _, err := convos.Authorise(ctx, tx, convo, c.caller); err != nil {
			return nil, err
		}
		state, err := h.welcomes.Confirm(ctx, tx, convo, device, in.Success, details)
		if err != nil {
			return nil, err
		}
		text := string(state)
		out := mlsapi.ConfirmWelcomeOutput{Confirmed: true, State: &text}
		return out.AppendJSON(nil), nil
	})
	if err != nil {
		return err
	}
	c.replyStored(answer)
	return nil
}
