package api

// places bound how many requests that need a processor for long run at one time, one per caller. The
// bytes of the pools are places here. Each kind has its own, so it does not wait for the others:
// verifications of small and of large objects, large pages, and exports.
type places struct{ small, large, pages, exports *memoryPool }

// newPlaces shares out as many places as there are processors, and at least one of each kind. Large
// objects and large pages have at most half of them, exports a fixed number.
func newPlaces(processors int) places {
	large := max(1, processors/2)
	return places{
		small: newMemoryPool(int64(max(1, processors-large)), 1),
		large: newMemoryPool(int64(large), 1),
		pages: newMemoryPool(int64(large), 1), exports: newMemoryPool(exportsAtOnce, 1),
	}
}

// Sizes of pages of a log, in bytes of ciphertext.
const (
	// smallPage is read without a place.
	smallPage = 512 * kib
	// sharedPage is what follows in a page whose place others wait for too.
	sharedPage = 1 * mib
)

// largePage takes a place for the rest of a page, and returns how many bytes that may have. The
// request must not hold a connection of the database: it can wait. If all places are taken, the rest
// is short, so that nobody waits long. Errors: limited, if the caller's other pages take too long;
// busy, if those of all callers do.
func (h *handlers) largePage(c *call, place *reservation) (maxBytes int64, err error) {
	if h.places.pages.tryReserve(place, c.caller.String(), c.address, 1) {
		return maxPageBytes, nil
	}
	if err := h.places.pages.reserve(c.ctx, place, c.caller.String(), c.address, 1); err != nil {
		return 0, err
	}
	return sharedPage, nil
}
