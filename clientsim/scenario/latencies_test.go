package scenario

import (
	"testing"
	"time"
)

func TestLag(t *testing.T) {
	t.Parallel()
	var l latencies
	for i := range 100 {
		l.add(time.Duration(i) * time.Millisecond)
	}
	l.add(-1)
	if l.at(.5) != time.Duration(49)*time.Millisecond || l.at(1) != time.Duration(100)*time.Millisecond || l.total() != 101 || l.most.Load() != int64(time.Duration(99)*time.Millisecond) {
		t.Errorf("p50 %s, p100 %s, max %d of %d", l.at(.5), l.at(1), l.most.Load(), l.total())
	}
}
