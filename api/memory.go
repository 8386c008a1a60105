package api

import (
	"time"

	"mlsd/internal/limit"
)

// Sizes of requests, in bytes. Some memory is set aside for requests up to maxTiny, and some for
// requests up to maxSmall, so that these many requests do not wait for uploads and pages.
const (
	maxTiny  = 16 * kib
	maxSmall = 256 * kib
)

// How many refused bodies are read to their end at one time: of all addresses, and of one address.
const maxDrains, maxDrainsOfAddress = 1024, 64

// memory is the memory that all requests of this server share.
type memory struct {
	bodies, answers *limit.Memory
	// streams is for attachments: slow transfers that each need little memory, whatever the size of
	// the attachment.
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

// client returns the client for which the call reserves memory.
func (c *call) client() limit.Client { return limit.Client{Key: c.caller.String(), Address: c.address} }

// refused returns the answer to a request that got no memory or no place. It is limited if the
// caller's other requests use too much for too long, and busy if the requests of all callers do.
func refused(err error) error {
	r, ok := find[*limit.RefusedError](err)
	switch {
	case !ok:
		return err
	case r.Own:
		return limited{after: time.Second}
	}
	return busy{after: time.Second}
}
