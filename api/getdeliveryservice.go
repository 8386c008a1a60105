package api

import (
	"context"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/features/network"
	"mlsd/internal/limit"
	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
)

// Bounds of the look-ups of services and homes that requests cause. Callers choose the hosts, and the
// hosts may answer slowly or not. People behind one PDS share its address, so each caller has a part
// of what an address has.
const (
	findersOfCaller  = 4  // look-ups at one time
	findersOfAddress = 24 // less than half of all (webLookupsOfServices of package serviceauth)
	finderWait       = 2 * time.Second
	findersKept      = 65_536 // callers and addresses that are remembered
)

var (
	findingOfCaller  = limit.Rate{PerSecond: 2, Burst: 200}
	findingOfAddress = limit.Rate{PerSecond: 10, Burst: 1000}
)

// finders bound the look-ups of services and homes.
type finders struct {
	rates              *limit.Buckets[string]
	callers, addresses *limit.Queue
}

func newFinders() finders {
	return finders{limit.NewBuckets[string](findersKept, time.Now), &limit.Queue{Share: findersOfCaller},
		&limit.Queue{Share: findersOfAddress}}
}

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
	caller, f := c.caller.String(), h.finders
	if _, ok := f.rates.Take("caller "+caller, findingOfCaller, n); !ok {
		return limited{after: time.Second}
	}
	if _, ok := f.rates.Take("address "+c.address, findingOfAddress, n); !ok {
		f.rates.Give("caller "+caller, findingOfCaller, n)
		return limited{after: time.Second}
	}
	ctx, cancel := context.WithTimeout(c.ctx, finderWait)
	defer cancel()
	places := int64(min(n, findersOfCaller))
	if err := f.callers.Acquire(ctx, caller, places); err != nil {
		return refused(err)
	}
	defer f.callers.Release(caller, places)
	if err := f.addresses.Acquire(ctx, c.address, places); err != nil {
		return refused(err)
	}
	defer f.addresses.Release(c.address, places)
	return look()
}
