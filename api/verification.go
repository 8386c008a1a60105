package api

import (
	"time"

	"mlsd/convos"
)

const (
	// maxSmallObjects separates requests with small objects of a group from those with large ones,
	// in bytes.
	maxSmallObjects = 64 * kib
	// unitVerification is how much time of a verification costs a unit.
	unitVerification = 2 * time.Millisecond
)

// verify calls f, which verifies signatures in objects of n bytes. The request must not hold a
// connection of the database: it can wait for a place. The caller is charged for the time. The
// errors are those of [place.acquire] and of [expensiveRequest.start].
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

// verified runs write until it needs no more verifications. Many signatures of objects of n bytes are
// verified between two transactions.
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
