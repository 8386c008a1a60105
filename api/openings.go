package api

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"golang.org/x/time/rate"
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
	rate       *rate.Limiter
	perAddress int

	mu      sync.Mutex     // guards what follows
	waiting map[string]int // by DID and by address; as many entries as wait at most twice
}

func newOpenings() *openings {
	processors := runtime.GOMAXPROCS(0)
	return &openings{
		rate:       rate.NewLimiter(rate.Limit(openingsPerSecond*processors), openingsAtOnce*processors),
		perAddress: openingsPerSecond * processors * int(longestOpening/time.Second) / openingsShare,
		waiting:    map[string]int{},
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
	if !o.enter(did, address) {
		opening.Cancel()
		return limited{after: time.Second}
	}
	defer o.leave(did, address)
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

// enter counts an opening that waits, if the limits allow it.
func (o *openings) enter(did, address string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting[did] >= maxOpeningsOfDID || o.waiting[address] >= o.perAddress {
		return false
	}
	o.waiting[did]++
	o.waiting[address]++
	return true
}

func (o *openings) leave(did, address string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range []string{did, address} {
		if o.waiting[of]--; o.waiting[of] == 0 {
			delete(o.waiting, of)
		}
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
