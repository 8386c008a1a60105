package api

import (
	"context"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/serviceauth"
)

const (
	// findersOfAddress is how many services one address can look for at a time. The hosts are chosen by
	// the callers and may answer slowly: they must not hold the look-ups of everybody.
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
func (h *handlers) home(c *call, p *mlsapi.GetDeliveryServiceParams) (home serviceauth.Service, err error) {
	err = h.find(c, 1, func() (err error) {
		home, err = h.Network.Home(c.ctx, p.DID)
		return err
	})
	return home, err
}

// find calls look, which makes up to n look-ups of services at a time, when there are places for them.
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
