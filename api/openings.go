package api

import (
	"context"
	"errors"
	"runtime"
	"time"

	"golang.org/x/time/rate"

	"mlsd/internal/limit"
)

// The rate at which streams are opened. When all clients reconnect at once, it leaves the
// processors to those who write.
const (
	openingsPerSecond = 400              // for each processor
	openingsAtOnce    = 16               // for each processor
	longestOpening    = 10 * time.Second // a client does not wait longer

	// maxOpeningsOfDID is how many openings of one DID wait.
	maxOpeningsOfDID = 16
	// openingsShare is the part of those who wait that can be of one address: one in so many.
	openingsShare = 4
	// hangUpCost is what a caller pays for a place in the queue that it gives up, in units.
	hangUpCost = 10
)

// openings are the streams that are about to begin. Their callers are known.
type openings struct {
	rate            *rate.Limiter
	dids, addresses limit.Queue // places to wait in
}

func newOpenings() *openings {
	processors := runtime.GOMAXPROCS(0)
	return &openings{
		rate: rate.NewLimiter(rate.Limit(openingsPerSecond*processors), openingsAtOnce*processors),
		dids: limit.Queue{Share: maxOpeningsOfDID},
		addresses: limit.Queue{Share: int64(openingsPerSecond*processors) * int64(longestOpening/time.Second) /
			openingsShare},
	}
}

// wait waits until another stream may be opened. Errors: limited, if too many of the caller or of
// its address wait already; busy, if too many wait in all; ctx's.
func (o *openings) wait(ctx context.Context, did, address string) error {
	opening := o.rate.Reserve()
	delay := opening.Delay()
	if delay == 0 {
		return nil
	}
	if delay > longestOpening {
		opening.Cancel()
		return busy{after: longestOpening}
	}
	if !o.dids.TryAcquire(did, 1) {
		opening.Cancel()
		return limited{after: time.Second}
	}
	defer o.dids.Release(did, 1)
	if !o.addresses.TryAcquire(address, 1) {
		opening.Cancel()
		return limited{after: time.Second}
	}
	defer o.addresses.Release(address, 1)
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		opening.Cancel()
		return ctx.Err()
	}
}

// opens waits until the caller may open a stream. A caller that hangs up meanwhile pays for its
// place.
func (h *handlers) opens(c *call) error {
	err := h.openings.wait(c.ctx, c.caller.String(), c.address)
	if errors.Is(err, context.Canceled) {
		c.spend(hangUpCost)
	}
	return err
}
