package api

import (
	"mlsd/api/mlsapi"
	"mlsd/convos"
)

// ConfirmWelcome: blue.catbird.mls.confirmWelcome. The Welcome's state makes it safe to repeat. The
// confirmation also accepts a convo that is a request, before the answer is sent. A client that
// gets no answer confirms again, and the second confirmation accepts the convo too.
func (h *handlers) ConfirmWelcome(c *call, in *mlsapi.ConfirmWelcomeInput) error {
	convo, err := c.convoID(in.ConvoID)
	if err != nil {
		return err
	}
	device, err := c.device(in.DeviceID, in.KeyPackageRef)
	if err != nil {
		return err
	}
	state, request, err := h.Welcomes.Confirm(c.ctx, convo, device, in.Success, or(in.ErrorDetails, ""))
	if err != nil {
		return err
	}
	if request && in.Success {
		if err := convos.Accept(c.ctx, h.DB, convo, c.caller); err != nil {
			return err
		}
	}
	return c.reply(&mlsapi.ConfirmWelcomeOutput{Confirmed: true, State: new(string(state))})
}
