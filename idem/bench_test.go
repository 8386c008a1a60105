package idem_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/idem"
	"mlsd/internal/pgtest"
)

// BenchmarkRowLevelSecurity measures what the policy costs a write with a record. The write has no
// effect, so the share of the policy is largest. Writes with and without the policy alternate, so
// that the machine's load is the same for both.
func BenchmarkRowLevelSecurity(b *testing.B) {
	var stores [2]*idem.Store
	for i := range stores {
		db := pgtest.Database(b)
		stores[i] = idem.New(db, &counts{}, slog.New(slog.DiscardHandler), nil)
		if i == 1 {
			_, err := db.Exec(b.Context(), `
				ALTER TABLE idempotency_keys NO FORCE ROW LEVEL SECURITY;
				ALTER TABLE idempotency_keys DISABLE ROW LEVEL SECURITY`)
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	nothing := func(context.Context, pgx.Tx) ([]byte, error) { return []byte("{}"), nil }
	do := func(s *idem.Store, key string) time.Duration {
		b.Helper()
		begun := time.Now()
		if _, err := s.Do(b.Context(), request(key, "a", "1"), nothing); err != nil {
			b.Fatal(err)
		}
		return time.Since(begun)
	}
	for i := range 200 { // warm up
		do(stores[0], fmt.Sprint("warm", i))
		do(stores[1], fmt.Sprint("warm", i))
	}
	var with, without time.Duration
	b.ResetTimer()
	for i := range b.N {
		with += do(stores[0], fmt.Sprint(i))
		without += do(stores[1], fmt.Sprint(i))
	}
	b.ReportMetric(float64(with)/float64(without), "with/without")
	b.ReportMetric(float64(with.Microseconds())/float64(b.N), "µs-with")
}
