package clientsim

import (
	"fmt"
	"sync/atomic"
	"time"
)

// lag counts how long events take, by the millisecond.
type lag struct {
	counts [lagBuckets]atomic.Int64
	most   atomic.Int64 // ns
}

const lagBuckets = 60_000

func (l *lag) add(d time.Duration) {
	l.counts[min(max(d.Milliseconds(), 0), lagBuckets-1)].Add(1)
	for most := l.most.Load(); int64(d) > most && !l.most.CompareAndSwap(most, int64(d)); most = l.most.Load() {
	}
}

func (l *lag) total() (n int64) {
	for i := range l.counts {
		n += l.counts[i].Load()
	}
	return n
}

// at is the lag that this share of the events does not exceed.
func (l *lag) at(share float64) time.Duration {
	want := int64(share * float64(l.total()))
	for i := range l.counts {
		if want -= l.counts[i].Load(); want <= 0 {
			return time.Duration(i+1) * time.Millisecond
		}
	}
	return lagBuckets * time.Millisecond
}

func (l *lag) String() string {
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, p99.9 %s, max %s of %d", l.at(.5), l.at(.9), l.at(.99), l.at(.999),
		time.Duration(l.most.Load()).Round(time.Millisecond), l.total())
}
