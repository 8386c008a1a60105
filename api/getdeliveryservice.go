package api

import (
	"context"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/serviceauth"
)

const (
	// findersOfAddress is how many look-ups of services one address can have at one time. Callers
	// choose the hosts, and the hosts may answer slowly. Without the bound, one address could take
	// the places of all callers.
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

// home looks up the person's service, once a place is free.
func (h *handlers) home(c *call, p *mlsapi.GetDeliveryServiceParams) (home serviceauth.Service, err error) {
	err = h.find(c, 1, func() (err error) {
		home, err = h.Network.Home(c.ctx, p.DID)
		return err
	})
	return home, err
}

// find calls look, which makes up to n look-ups of services at one time, once n places are free.
func (h *handlers) find(c *call, n int, look func() error) error {
	ctx, cancel := context.WithTimeout(c.ctx, finderWait)
	defer cancel()
	places := int64(min(n, findersOfAddress))
	if err := h.finders.Acquire(ctx, c.address, places); err != nil {
		return refused(err)
	}
	defer h.finders.Release(c.address, places)
	return look()
}
