package idem

import (
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// operation is how long things last for one method's keys.
type operation struct {
	life  time.Duration // of a record: within it a repetition gets the first answer
	lease time.Duration // of a reservation that is not extended; work outside the database only
}

const (
	defaultLife  = 7 * 24 * time.Hour
	defaultLease = 5 * time.Minute
)

// NSIDPush is the operation of a push job (package push): no method, but work outside under a key like any other.
const NSIDPush = "mlsd.push"

// operations are the lifetimes that differ from the default, which createConvo, the commits and leaveConvo have. After its
// lifetime a key is new again, and the natural guard behind each write is what is left: docs/IDEMPOTENCY.md lists them.
// sendMessage is not here: its record is the message, and lasts as long.
var operations = map[syntax.NSID]operation{
	"blue.catbird.mls.publishKeyPackage":    {life: 24 * time.Hour},
	"blue.catbird.mls.publishKeyPackages":   {life: 24 * time.Hour},
	"blue.catbird.mls.getKeyPackages":       {life: 30 * time.Minute}, // as long as the claim
	"blue.catbird.mls.registerPushTarget":   {life: 24 * time.Hour},
	"blue.catbird.mls.unregisterPushTarget": {life: 24 * time.Hour},
	NSIDPush:                                {life: 24 * time.Hour, lease: time.Minute},
}

func operationOf(nsid string) operation {
	op := operations[syntax.NSID(nsid)]
	if op.life == 0 {
		op.life = defaultLife
	}
	if op.lease == 0 {
		op.lease = defaultLease
	}
	return op
}
