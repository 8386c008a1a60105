package api

import (
	"context"
	"errors"
	"runtime"
	"time"

	"mlsd/internal/limit"
)

// Streams are opened at a limited rate. When all clients reconnect at once, the limit keeps the
// processors free for those who write.
const (
	openingsAtOnce = 16                    // for each processor
	openingPlace   = 40 * time.Millisecond // how long an opening keeps its place: 400 a second for each processor
	longestOpening = 10 * time.Second      // a client does not wait longer

	// maxOpeningsOfDID is how many openings of one DID wait.
	maxOpeningsOfDID = 16
	// openingsShare is the part of those who wait that can be of one address: one in so many.
	openingsShare = 4
	// hangUpCost is what a caller pays for a place in the queue that it gives up, in units.
	hangUpCost = 10
)

// openings are the streams that are about to begin. Their callers are known, and take turns: one
// with many openings does not delay another with one (H5).
type openings struct {
	places    limit.Queue // an opening has one for openingPlace
	addresses limit.Queue // of those that wait
}

func newOpenings() *openings {
	places := openingsAtOnce * runtime.GOMAXPROCS(0)
	waiting := places * int(longestOpening/openingPlace)
	return &openings{
		// Half, because MaxWaiting lets as many more wait whose callers have none waiting.
		places:    limit.Queue{Size: int64(places), MaxWaiting: waiting / 2, MaxWaitingOfKey: maxOpeningsOfDID},
		addresses: limit.Queue{Share: int64(waiting / openingsShare)},
	}
}

// wait waits until another stream may be opened. Errors: limited, if too many of the caller or of
// its address wait already; busy, if too many wait in all or this one has waited too long; ctx's.
func (o *openings) wait(ctx context.Context, did, address string) error {
	if !o.places.TryAcquire(did, 1) {
		if !o.addresses.TryAcquire(address, 1) {
			return limited{after: time.Second}
		}
		defer o.addresses.Release(address, 1)
		longest, cancel := context.WithTimeout(ctx, longestOpening)
		defer cancel()
		err := o.places.Acquire(longest, did, 1)
		r, _ := find[*limit.Refused](err)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case r.Own && r.Err == nil:
			return limited{after: time.Second}
		default:
			return busy{after: longestOpening}
		}
	}
	time.AfterFunc(openingPlace, func() { o.places.Release(did, 1) })
	return nil
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
