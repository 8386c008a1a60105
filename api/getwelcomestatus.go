package api

import (
	"github.com/google/uuid"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
)

// GetWelcomeStatus: blue.catbird.mls.getWelcomeStatus. A page's cursor is the last Welcome that the
// page has examined.
func (h *handlers) GetWelcomeStatus(c *call, p *mlsapi.GetWelcomeStatusParams) error {
	after, err := placeOf(p.Cursor, uuid.Nil)
	if err != nil {
		return err
	}
	convo, _, err := c.member(h.DB, p.ConvoID)
	if err != nil {
		return err
	}
	all, next, err := h.Welcomes.Statuses(c.ctx, h.DB, convo, c.caller, after, int(p.Limit))
	if err != nil {
		return err
	}
	out := &mlsapi.GetWelcomeStatusOutput{Welcomes: make([]mlsapi.WelcomeStatus, len(all))}
	for i, w := range all {
		out.Welcomes[i] = mlsapi.WelcomeStatus{
			DID: w.DID, DeviceID: w.DeviceID, KeyPackageRef: w.Ref.String(), Epoch: w.Epoch, State: string(w.State),
			Since: lexcodec.NewDatetime(w.Since),
		}
	}
	if next != nil {
		out.Cursor = lexcodec.Pointer(next.String())
	}
	return c.reply(out)
}
