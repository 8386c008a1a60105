package events_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"mlsd/events"
	"mlsd/internal/pgtest"
)

// BenchmarkSequencers moves rows of many convos that wait in the outbox, with several sequencers on
// one node.
func BenchmarkSequencers(b *testing.B) {
	const rows, convos = 100_000, 256
	for _, number := range []int{1, 2, 4} {
		b.Run(fmt.Sprint(number), func(b *testing.B) {
			w := &world{db: pgtest.Database(b)}
			n, _ := w.several(b, number)
			for b.Loop() {
				b.StopTimer()
				_, err := w.db.Exec(b.Context(), `
					INSERT INTO outbox (kind, convo_id, seq, size, created_at)
					SELECT 4, ('00000000-0000-4000-8000-' || lpad((i % $2)::text, 12, '0'))::uuid, i, 100, clock_timestamp() FROM generate_series(1, $1) i`, rows, convos)
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				var moving sync.WaitGroup
				for _, s := range append([]*events.Sequencer{n.seq}, n.seq.Others()[:number-1]...) {
					moving.Go(func() {
						for more := true; more; {
							var err error
							if more, err = s.Round(context.Background()); err != nil {
								b.Error(err)
							}
						}
					})
				}
				moving.Wait()
			}
			b.ReportMetric(float64(b.N*rows)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
