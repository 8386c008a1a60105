package messages

import (
	"runtime"
	"testing"
)

// A node is busy while more messages wait than its processors can do soon, and for a moment after
// that. Few messages do not make it busy.
func TestCrowded(t *testing.T) {
	t.Parallel()
	l := &Log{}
	var ends []func()
	for range sendsOfCPU * runtime.GOMAXPROCS(0) {
		ends = append(ends, l.begins())
	}
	if l.Crowded() {
		t.Error("busy with few messages")
	}
	ends = append(ends, l.begins())
	for _, end := range ends {
		end()
	}
	if l.crowded.Load() == 0 || l.sending.Load() != 0 {
		t.Errorf("crowded at %d, and %d messages wait", l.crowded.Load(), l.sending.Load())
	}
}
