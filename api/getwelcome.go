package api

import (
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/convos"
	"mlsd/welcome"
)

// GetWelcome: blue.catbird.mls.getWelcome. It is a query, although it opens a lease.
func (h *handlers) GetWelcome(c *call, p *mlsapi.GetWelcomeParams) error {
	convo, err := c.convoID(p.ConvoID)
	if err != nil {
		return err
	}
	device, err := c.device(p.DeviceID, p.KeyPackageRef)
	if err != nil {
		return err
	}
	w, err := h.Welcomes.Fetch(c.ctx, convo, device)
	if errors.Is(err, welcome.ErrConsumed) {
		way, unknown := convos.WayBackOf(c.ctx, h.DB, convo, c.caller)
		if unknown != nil {
			return unknown
		}
		return fmt.Errorf("%w; %s", err, way)
	}
	if err != nil {
		return err
	}
	return c.replyObjects(len(w.Body), &mlsapi.GetWelcomeOutput{
		ConvoID: p.ConvoID, Welcome: w.Body, KeyPackageRef: new(w.KeyPackageRef.String()), State: new(string(w.State)),
		GraceExpiresAt: datetime(&w.GraceExpiresAt), Epoch: &w.Epoch,
		Request: present(w.Request),
	})
}
