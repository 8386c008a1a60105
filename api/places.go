package api

import (
	"context"
	"time"

	"mlsd/convos"
	"mlsd/internal/limit"
)

// maxPlaceWait is how long a request waits for a place.
const maxPlaceWait = 5 * time.Second

// places bounds how many requests that need a processor for long run at one time. Each caller has
// at most one. Each kind of request has its own places, so that no kind waits for another:
// verifications of small objects, verifications of large objects, large pages, and exports.
type places struct{ small, large, pages, exports *limit.Queue }

// newPlaces creates as many places for small objects as there are processors, and at least one
// place of each kind. Large objects and large pages get at most half as many. Exports get a fixed
// number.
func newPlaces(processors int) places {
	large := max(1, processors/2)
	return places{
		small:   &limit.Queue{Size: int64(max(1, processors-large)), Share: 1},
		large:   &limit.Queue{Size: int64(large), Share: 1},
		pages:   &limit.Queue{Size: int64(large), Share: 1},
		exports: &limit.Queue{Size: exportsAtOnce, Share: 1},
	}
}

// place is a place that a request holds until release. The zero place holds nothing.
type place struct {
	queue  *limit.Queue
	caller string
}

// acquire waits for a place and takes it. Errors: limited, if the caller's other requests keep
// their places for too long; busy, if the requests of all callers do.
func (p *place) acquire(c *call, queue *limit.Queue) error {
	ctx, cancel := context.WithTimeout(c.ctx, maxPlaceWait)
	defer cancel()
	if err := queue.Acquire(ctx, c.caller.String(), 1); err != nil {
		return refused(err)
	}
	*p = place{queue, c.caller.String()}
	return nil
}

// tryAcquire takes a place if one is free, and reports whether it did.
func (p *place) tryAcquire(c *call, queue *limit.Queue) bool {
	if !queue.TryAcquire(c.caller.String(), 1) {
		return false
	}
	*p = place{queue, c.caller.String()}
	return true
}

func (p *place) release() {
	if p.queue != nil {
		p.queue.Release(p.caller, 1)
	}
}

// Sizes of pages of a log, in bytes of ciphertext.
const (
	// A page up to smallPage is read without a place.
	smallPage = 512 * kib
	// sharedPage is how many more bytes a page may have while other requests wait for its place.
	sharedPage = 1 * mib
)

// largePage takes a place for the rest of a page, and returns how many bytes the rest may have. The
// request must not hold a database connection, because it may wait. If all places are taken, the
// rest is short, so that no request waits long. Errors: the errors of [place.acquire].
func (h *handlers) largePage(c *call, p *place) (maxBytes int64, err error) {
	if p.tryAcquire(c, h.places.pages) {
		return maxPageBytes, nil
	}
	if err := p.acquire(c, h.places.pages); err != nil {
		return 0, err
	}
	return sharedPage, nil
}

const (
	// maxSmallObjects is the largest size of small objects of a group, in bytes.
	maxSmallObjects = 64 * kib
	// A caller pays one unit for each unitVerification of a verification.
	unitVerification = 2 * time.Millisecond
)

// verify calls f, which verifies signatures in objects of n bytes. The request must not hold a
// database connection, because it may wait for a place. The caller pays for the time. Errors: the
// errors of [place.acquire] and of [expensiveRequest.start].
func (h *handlers) verify(c *call, n int, f func()) error {
	places := h.places.small
	if n > maxSmallObjects {
		places = h.places.large
	}
	return c.outside(func() error {
		var p place
		if err := p.acquire(c, places); err != nil {
			return err
		}
		defer p.release()
		begun := time.Now()
		f()
		c.spend(int(time.Since(begun) / unitVerification))
		return nil
	})
}

// verified runs write until write needs no more verifications. Many signatures in objects of n
// bytes are verified between two transactions.
func (h *handlers) verified(c *call, n int, write func() error) error {
	for {
		err := write()
		unverified, many := find[*convos.UnverifiedError](err)
		if !many {
			return err
		}
		if err := h.verify(c, n, unverified.Verify); err != nil {
			return err
		}
	}
}
