package main

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkDevReset measures resets of a server with an account and a convo in it: one right after
// the other, and with a pause, as tests have between them. Run it with -benchtime 50x.
func BenchmarkDevReset(b *testing.B) {
	for name, pause := range map[string]time.Duration{"at once": 0, "every 500 ms": 500 * time.Millisecond} {
		b.Run(name, func(b *testing.B) {
			c, _ := bootDev(b)
			var took []time.Duration
			for range b.N {
				c.device(c.account(), "a")
				operate[struct{}](c, "a", "create", "")
				time.Sleep(pause)
				begun := time.Now()
				c.dev("reset", "")
				took = append(took, time.Since(begun))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms/max")
			b.ReportMetric(0, "ns/op")
		})
	}
}
