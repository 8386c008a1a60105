package convos_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
	"mlsd/mls"
)

// BenchmarkCostlyConvo creates a convo with 4,800 leaves (H1) and a Welcome for all of them, whose
// KeyPackages do not exist: it is refused, and can be sent again and again. It measures how long
// the transaction lasts if the convo is judged before it, and inside it.
func BenchmarkCostlyConvo(b *testing.B) {
	const people, devices = 96, 50
	db := pgtest.Database(b)
	group := make([]byte, 16)
	n := convos.NewConvo{Creator: alice, GroupID: group, CipherSuite: mlstest.Suite, Key: "k"}
	leaves := []*mlstest.Device{mlstest.NewDevice(b, alice.String())}
	refs := []mls.KeyPackageRef{}
	for p := range people {
		did := syntax.DID(fmt.Sprintf("did:plc:p%d", p))
		n.Members = append(n.Members, did)
		for range devices {
			ref := make([]byte, 32)
			if _, err := rand.Read(ref); err != nil {
				b.Fatal(err)
			}
			leaves, refs = append(leaves, mlstest.NewDevice(b, did.String())), append(refs, ref)
		}
	}
	n.GroupInfo, n.Welcome = mlstest.GroupInfo(b, group, 1, leaves...), mlstest.Welcome(b, refs...)
	var judged, before, inside time.Duration
	create := func(n convos.NewConvo) time.Duration {
		begun := time.Now()
		err := pgx.BeginFunc(b.Context(), db, func(tx pgx.Tx) error {
			_, err := convos.Create(b.Context(), tx, n)
			return err
		})
		if !errors.Is(err, keypackages.ErrNotFound) {
			b.Fatal(err)
		}
		return time.Since(begun)
	}
	for b.Loop() {
		inside += create(n)
		early := n
		begun := time.Now()
		early.Judge()
		judged += time.Since(begun)
		before += create(early)
	}
	for name, took := range map[string]time.Duration{"ms/judge": judged, "ms/tx": before, "ms/tx-judging-inside": inside} {
		b.ReportMetric(float64(took.Milliseconds())/float64(b.N), name)
	}
}
