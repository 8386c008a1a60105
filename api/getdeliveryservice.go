package api

import (
	"mlsd/api/mlsapi"
)

// GetDeliveryService: blue.catbird.mls.getDeliveryService.
func (h *handlers) GetDeliveryService(c *call, p *mlsapi.GetDeliveryServiceParams) error {
	out := &mlsapi.GetDeliveryServiceOutput{DID: p.DID}
	home, err := h.network.Home(c.ctx, p.DID)
	if err != nil {
		return err
	}
	if home.DID != "" {
		out.DeliveryService = &home.DID
	}
	if home.Endpoint != "" {
		out.Endpoint = &home.Endpoint
	}
	return c.reply(out)
}
