package accounts_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/pgtest"
	"mlsd/people/accounts"
)

// BenchmarkCheck is what the gate costs each request, with 1,000 refused accounts.
func BenchmarkCheck(b *testing.B) {
	db := pgtest.Database(b)
	_, err := db.Exec(b.Context(), `
		INSERT INTO accounts (did, blocked_at, blocked_by, version) SELECT 'did:plc:blocked' || n, now(), 'olga', 1 FROM
			generate_series(1, 1000) n`)
	if err != nil {
		b.Fatal(err)
	}
	gate, err := accounts.NewGate(accounts.GateConfig{DB: db, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	if err := gate.Load(b.Context()); err != nil {
		b.Fatal(err)
	}
	if gate.Check(b.Context(), "did:plc:blocked1000") == nil {
		b.Fatal("a blocked account is not refused")
	}
	dids := make([]syntax.DID, 1024)
	for i := range dids {
		dids[i] = syntax.DID(fmt.Sprintf("did:plc:caller%018d", i))
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if err := gate.Check(context.Background(), dids[i%len(dids)]); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
