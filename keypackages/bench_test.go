package keypackages

import (
	"context"
	"fmt"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// BenchmarkClaimsTogether measures the most that claims could gain from sharing transactions. It
// runs only their statements, without idempotency records and signals: each claim in a transaction
// of its own, and then 16 claims in one transaction, with 128 claims in flight. The two alternate.
func BenchmarkClaimsTogether(b *testing.B) {
	const shared, inFlight = 16, 128
	db := pgtest.Database(b, pgtest.MaxConns(32))
	next := 0
	stock := func(n int) func(i int) ClaimRequest {
		first := next
		next += n
		_, err := db.Exec(b.Context(), `
			INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at)
			SELECT 'did:plc:o' || o, decode(md5(o || ' ' || k), 'hex'), 'phone', 1, decode(repeat('ab', 300), 'hex'),
				now() + interval '30 days', false, now()
			FROM generate_series($1::int, $2::int) AS o, generate_series(1, 3) AS k`, first, next-1)
		if err != nil {
			b.Fatal(err)
		}
		return func(i int) ClaimRequest {
			owner := syntax.DID(fmt.Sprint("did:plc:o", first+i))
			return ClaimRequest{Caller: syntax.DID(fmt.Sprint("did:plc:c", first+i)), DIDs: []syntax.DID{owner}, CipherSuite: 1}
		}
	}
	send := func(ctx context.Context, claims ...ClaimRequest) error {
		var batch pgx.Batch
		taken := make([]claimedRows, len(claims))
		for i, c := range claims {
			pgpool.LockClaims.Queue(&batch, c.Caller.String())
			taken[i].queue(&batch, c)
		}
		err := db.SendBatch(ctx, &batch).Close()
		for i := range taken {
			if err == nil && len(taken[i].served) != 1 {
				err = fmt.Errorf("claimed %+v", taken[i])
			}
		}
		return err
	}
	var alone, together float64
	rounds := func(n int) {
		for range n {
			claim := stock(2048)
			alone += pgtest.Run(b, inFlight, 2048, func(ctx context.Context, i int) error { return send(ctx, claim(i)) }).Rate
			claim = stock(2048)
			together += shared * pgtest.Run(b, inFlight/shared, 2048/shared, func(ctx context.Context, i int) error {
				var claims []ClaimRequest
				for j := range shared {
					claims = append(claims, claim(i*shared+j))
				}
				return send(ctx, claims...)
			}).Rate
		}
	}
	rounds(1) // warm up
	alone, together = 0, 0
	b.ResetTimer()
	rounds(b.N)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(alone/float64(b.N), "alone/s")
	b.ReportMetric(together/float64(b.N), "together/s")
	b.ReportMetric(together/alone, "together/alone")
}
