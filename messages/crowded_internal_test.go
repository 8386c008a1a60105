package messages

import (
	"runtime"
	"testing"
	"time"
)

// A node is busy while more messages wait than its processors can do soon, and for a moment after
// that. Few messages do not make it busy.
func TestCrowded(t *testing.T) {
	t.Parallel()
	l := &Log{sends: sends{keys: map[requestKey]int{}}}
	few := sendsPerCPU * runtime.GOMAXPROCS(0)
	for range few {
		if _, err := l.sends.begin(&Draft{}); err != nil {
			t.Fatal(err)
		}
	}
	if l.Crowded() {
		t.Error("busy with few messages")
	}
	if _, err := l.sends.begin(&Draft{}); err != nil {
		t.Fatal(err)
	}
	for range few + 1 {
		l.sends.end(&Draft{})
	}
	if !l.Crowded() || l.sends.n != 0 {
		t.Errorf("crowded: %v, and %d messages wait", l.Crowded(), l.sends.n)
	}
	if l.sends.crowded = time.Now().Add(-busyFor); l.Crowded() {
		t.Error("busy for ever")
	}
}
