package node

import (
	"slices"
	"testing"

	"mlsd/operator/console"
)

// Every metric that the console reads exists.
func TestConsoleReadsMetrics(t *testing.T) {
	t.Parallel()
	known := metricNames(t)
	for _, name := range console.Metrics() {
		if !slices.Contains(known, name) {
			t.Errorf("the server has no %s", name)
		}
	}
}
