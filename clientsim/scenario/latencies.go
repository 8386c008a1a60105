package scenario

import (
	"fmt"
	"sync/atomic"
	"time"
)

// latencies counts latencies by the millisecond.
type latencies struct {
	counts [latencyBuckets]atomic.Int64
	most   atomic.Int64 // ns
}

const latencyBuckets = 60_000

func (l *latencies) add(d time.Duration) {
	l.counts[min(max(d.Milliseconds(), 0), latencyBuckets-1)].Add(1)
	for most := l.most.Load(); int64(d) > most && !l.most.CompareAndSwap(most, int64(d)); most = l.most.Load() {
	}
}

func (l *latencies) total() (n int64) {
	for i := range l.counts {
		n += l.counts[i].Load()
	}
	return n
}

// at returns the latency that the given share of the events does not exceed.
func (l *latencies) at(share float64) time.Duration {
	want := int64(share * float64(l.total()))
	for i := range l.counts {
		if want -= l.counts[i].Load(); want <= 0 {
			return time.Duration(i+1) * time.Millisecond
		}
	}
	return latencyBuckets * time.Millisecond
}

func (l *latencies) String() string {
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, p99.9 %s, max %s of %d", l.at(.5), l.at(.9), l.at(.99), l.at(.999),
		time.Duration(l.most.Load()).Round(time.Millisecond), l.total())
}
