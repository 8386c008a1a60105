package keypackages_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/idem"
	"mlsd/idem/idemtest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
)

// BenchmarkClaimFloor compares a claim under a key, with its record, to the floor: one statement
// that claims a KeyPackage and returns it. The owners have 100 KeyPackages each, and no signal is
// due. The two alternate. It counts the processor time of the database's sessions, which does not
// depend on what else runs on the machine, and the round trips.
func BenchmarkClaimFloor(b *testing.B) {
	for _, inFlight := range []int{1, 64} {
		b.Run(fmt.Sprint("in-flight=", inFlight), func(b *testing.B) {
			const perRound, owners = 256, 1024
			var trips pgtest.Trips
			db := pgtest.Database(b, pgtest.MaxConns(int32(min(inFlight, 32))), pgtest.CountTrips(&trips))
			store := idem.New(db, idemtest.Uncounted{}, slog.New(slog.DiscardHandler), nil)
			if _, err := db.Exec(b.Context(), `
				INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at)
				SELECT 'did:plc:o' || o, decode(md5(o || ' ' || k), 'hex'), 'phone', 1, decode(repeat('ab', 300), 'hex'),
					now() + interval '30 days', false, now()
				FROM generate_series(0, $1::int - 1) AS o, generate_series(1, 100) AS k`, owners); err != nil {
				b.Fatal(err)
			}
			if _, err := db.Exec(b.Context(), `VACUUM ANALYZE key_packages`); err != nil {
				b.Fatal(err)
			}
			n := 0
			names := func(i int) (owner, caller syntax.DID) {
				return syntax.DID(fmt.Sprint("did:plc:o", i%owners)), syntax.DID(fmt.Sprint("did:plc:c", i))
			}
			claim := func(ctx context.Context, i int) error {
				owner, caller := names(i)
				req := idem.Request{Caller: caller, NSID: "blue.catbird.mls.getKeyPackages", Key: fmt.Sprint(i),
					Input: idem.Content{{Name: "dids", JSON: []byte(`["did:plc:owner"]`)}}}
				_, err := store.Do(ctx, req, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
					taken, err := keypackages.Claim(ctx, tx,
						keypackages.ClaimRequest{Caller: caller, DIDs: []syntax.DID{owner}, CipherSuite: 1})
					if err == nil && len(taken.Claimed) != 1 {
						err = fmt.Errorf("claimed %+v", taken)
					}
					return make([]byte, 200), err
				})
				return err
			}
			floor := func(ctx context.Context, i int) error {
				owner, caller := names(i)
				var body []byte
				return db.QueryRow(ctx, `
					UPDATE key_packages SET state = 'claimed', claimed_by = $2, claimed_by_outsider = true, claimed_at = now(),
						claim_expires_at = now() + interval '1 day'
					WHERE (did, ref) = (SELECT did, ref FROM key_packages
						WHERE did = $1 AND state = 'available' AND NOT last_resort
						ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED)
					RETURNING body`, owner, caller).Scan(&body)
			}
			var took, sent [2]int64
			round := func() {
				for j, call := range []func(context.Context, int) error{claim, floor} {
					first, at, tripsAt := n, pgtest.ProcessorTime(b, db), trips.Count()
					n += perRound
					pgtest.Run(b, inFlight, perRound, func(ctx context.Context, i int) error { return call(ctx, first+i) })
					sent[j] += trips.Count() - tripsAt
					took[j] += pgtest.ProcessorTime(b, db) - at
				}
			}
			round() // warm up
			took, sent = [2]int64{}, [2]int64{}
			b.ResetTimer()
			for range b.N {
				round()
			}
			calls := float64(b.N * perRound)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took[0])/calls/1000, "database-µs/claim")
			b.ReportMetric(float64(took[1])/calls/1000, "database-µs/floor")
			b.ReportMetric(float64(took[0])/float64(took[1]), "claim/floor")
			b.ReportMetric(float64(sent[0])/calls, "trips/claim")
		})
	}
}
