package api

import (
	"time"

	"mlsd/internal/limit"
)

// Sizes of requests, in bytes. Uploads and pages must not keep the many small requests waiting, so
// some memory is for those up to maxTiny, and some for those up to maxSmall.
const (
	maxTiny  = 16 * kib
	maxSmall = 256 * kib
)

// Of the rest of refused bodies, so many are read at one time, and so many of one address.
const maxDrains, maxDrainsOfAddress = 1024, 64

// memory is the memory that the requests of this server can reserve at one time.
type memory struct {
	bodies, answers *limit.Memory
	// streams is for attachments, which are slow, and take as little whatever their size.
	streams *limit.Memory
	drains  *limit.Queue
}

func newMemory() memory {
	return memory{
		bodies: limit.NewMemory(
			limit.Bound{Size: 384 * mib, Share: 72 * mib},
			limit.Bound{Above: maxTiny, Size: 320 * mib, Share: 64 * mib},
			limit.Bound{Above: maxSmall, Size: 256 * mib, Share: 32 * mib},
		),
		answers: limit.NewMemory(
			limit.Bound{Size: 576 * mib, Share: 96 * mib},
			limit.Bound{Above: maxSmall, Size: 512 * mib, Share: 64 * mib},
		),
		streams: limit.NewMemory(limit.Bound{Size: 256 * mib, Share: 16 * mib}),
		drains:  &limit.Queue{Size: maxDrains, Share: maxDrainsOfAddress},
	}
}

// client is who the call reserves memory for.
func (c *call) client() limit.Client { return limit.Client{Key: c.caller.String(), Address: c.address} }

// refused is the answer to a request that got no memory or no place: limited, if the caller's
// other requests use too much for too long; busy, if those of all callers do.
func refused(err error) error {
	r, ok := find[*limit.Refused](err)
	switch {
	case !ok:
		return err
	case r.Own:
		return limited{after: time.Second}
	}
	return busy{after: time.Second}
}
