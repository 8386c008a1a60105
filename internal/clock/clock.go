// Package clock knows how far the database's clock is from this node's. Both decide about the same
// token: the node whether it has expired, and the database how long its use must be remembered. If
// they differ by more than the tolerance of tokens, a node refuses everybody.
package clock

import (
	"fmt"
	"sync/atomic"
	"time"
)

// MaxOffset is how far the clocks may differ. It is below the 30 s by which tokens may come early
// (clockSkew) or be used late (LateUse) of package serviceauth.
const MaxOffset = 20 * time.Second

// Offset is how far the database's clock is ahead of this node's. The zero value knows of no
// difference. It is safe for concurrent use.
type Offset struct{ ahead atomic.Int64 }

// Measure records the database's time now. The question left this node at asked, and the answer came
// back at answered. An answer that took longer than MaxOffset says nothing.
func (o *Offset) Measure(asked, now, answered time.Time) {
	if took := answered.Sub(asked); took >= 0 && took < MaxOffset {
		o.ahead.Store(int64(now.Sub(asked.Add(took / 2))))
	}
}

// Ahead returns how far the database's clock was ahead when it was last measured. It is negative if
// the database's clock was behind.
func (o *Offset) Ahead() time.Duration { return time.Duration(o.ahead.Load()) }

// Fault says that the clocks differ by more than MaxOffset, and what to do. It returns "" if they do
// not. A nil Offset has no fault.
func (o *Offset) Fault() string {
	if o == nil || o.Ahead().Abs() <= MaxOffset {
		return ""
	}
	relation := "ahead of"
	if o.Ahead() < 0 {
		relation = "behind"
	}
	return fmt.Sprintf("the database's clock is %v %s this node's, and at most %v is allowed: "+
		"set both clocks, and let NTP keep them", o.Ahead().Abs().Round(time.Second), relation, MaxOffset)
}
