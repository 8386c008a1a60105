package api

import (
	"context"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/serviceauth"
)

const (
	// findersOfAddress is how many people of one address can look for a service at a time. The hosts are
	// chosen by them and may answer slowly: they must not hold the look-ups of everybody.
	findersOfAddress = 8
	finderWait       = 2 * time.Second
)

// GetDeliveryService: blue.catbird.mls.getDeliveryService.
func (h *handlers) GetDeliveryService(c *call, p *mlsapi.GetDeliveryServiceParams) error {
	out := &mlsapi.GetDeliveryServiceOutput{DID: p.DID}
	home, err := h.home(c, p)
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

// home looks up the person's service, when there is a place.
func (h *handlers) home(c *call, p *mlsapi.GetDeliveryServiceParams) (serviceauth.Service, error) {
	ctx, cancel := context.WithTimeout(c.ctx, finderWait)
	defer cancel()
	if err := h.finders.Acquire(ctx, c.address, 1); err != nil {
		return serviceauth.Service{}, refused(err)
	}
	defer h.finders.Release(c.address, 1)
	return h.network.Home(c.ctx, p.DID)
}
