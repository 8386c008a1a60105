package testbed

import (
	"strings"
	"testing"
)

// A failed request of a client is kept, however many workers fail before it.
func TestFailedRequestsAreKept(t *testing.T) {
	t.Parallel()
	p := &Proc{log: newLastLines(3)}
	for range 10 {
		p.log.add(`{"level":"ERROR","msg":"the push worker failed"}`)
	}
	p.log.add(`{"level":"ERROR","msg":"request failed","error":"why"}`)
	for range 10 {
		p.log.add(`{"level":"ERROR","msg":"the push worker failed"}`)
	}
	if got := p.FailedRequests(); !strings.Contains(got, "why") || strings.Contains(got, "worker") {
		t.Errorf("kept: %s", got)
	}
}
