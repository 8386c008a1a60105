package api

import (
	"context"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/features/network"
	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
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

// home looks up the person's service, once a place is free. If this service deals with no other
// service, it looks nobody up: a person with KeyPackages here is at home here.
func (h *handlers) home(c *call, p *mlsapi.GetDeliveryServiceParams) (home serviceauth.Service, err error) {
	if h.Network.Alone() {
		here, err := keypackages.Has(c.ctx, h.DB, p.DID)
		if err == nil && !here {
			err = &network.DistrustError{DID: p.DID, Reason: "has no KeyPackages here, and " + h.ServiceDID.String() +
				" deals with no other service: its operator has chosen none (MLSD_SERVICES)"}
		}
		return serviceauth.Service{DID: h.ServiceDID, Endpoint: h.PublicURL}, err
	}
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
