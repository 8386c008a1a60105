package api

import "mlsd/api/mlsapi"

// ConfirmWelcome: blue.catbird.mls.confirmWelcome. The Welcome's state makes it safe to repeat.
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
	state, err := h.welcomes.Confirm(c.ctx, convo, device, in.Success, details)
	if err != nil {
		return err
	}
	text := string(state)
	return c.reply(&mlsapi.ConfirmWelcomeOutput{Confirmed: true, State: &text})
}
