package api

import "time"

const (
	// maxSmallObjects separates requests with small objects of a group from those with large ones,
	// in bytes.
	maxSmallObjects = 64 * kib
	// unitVerification is how much time of a verification costs a unit.
	unitVerification = 2 * time.Millisecond
)

// verify calls f, which verifies signatures in objects of n bytes. The request must not hold a
// connection of the database: it can wait for a place. The caller is charged for the time. Errors:
// limited, if the caller's other requests verify for too long; busy, if those of all callers do;
// those of [dearRequest.enter].
func (h *handlers) verify(c *call, n int, f func()) error {
	places := h.places.small
	if n > maxSmallObjects {
		places = h.places.large
	}
	return c.outside(func() error {
		var place reservation
		if err := places.reserve(c.ctx, &place, c.caller.String(), c.address, 1); err != nil {
			return err
		}
		defer place.release()
		begun := time.Now()
		f()
		c.spend(int(time.Since(begun) / unitVerification))
		return nil
	})
}
