package convos_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
)

// BenchmarkRecord says what the idempotency record costs createConvo and addMembers: each is done
// under a key, and then another one without a key. The two alternate, so that the machine's load is
// the same for both.
func BenchmarkRecord(b *testing.B) {
	db := pgtest.Database(b)
	store := idem.New(db, uncounted{}, slog.New(slog.DiscardHandler), nil)
	do := func(nsid, key string, effect idem.Effect) time.Duration {
		b.Helper()
		hashed := idem.Content{{Name: "groupId", JSON: []byte(`"the group"`)}, {Name: "commit", JSON: []byte(`"the commit"`)}}
		begun := time.Now()
		if _, err := store.Do(b.Context(), idem.Request{Caller: alice, NSID: nsid, Key: key, Input: hashed},
			effect); err != nil {
			b.Fatal(err)
		}
		return time.Since(begun)
	}
	create := func(id *uuid.UUID, group []byte) idem.Effect {
		return func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			c, err := convos.Create(ctx, tx,
				convos.NewConvo{Creator: alice, GroupID: group, CipherSuite: mlstest.Suite, Key: "k"})
			*id = c.ID
			return make([]byte, 400), err
		}
	}
	add := func(convo uuid.UUID, group []byte, did syntax.DID) idem.Effect {
		body, ref := mlstest.NewDevice(b, did.String()).KeyPackage(b)
		err := pgx.BeginFunc(b.Context(), db, func(tx pgx.Tx) error {
			_, err := keypackages.Publish(b.Context(), tx,
				keypackages.Publication{Owner: did, Body: body, CipherSuite: mlstest.Suite})
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		welcome := mlstest.Welcome(b, ref)
		return func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := convos.Add(ctx, tx,
				convos.AddMembers{ConvoID: convo, Caller: alice, DIDs: []syntax.DID{did}, Proposed: convos.Proposed{
					Commit: mlstest.Commit(group, 0, "add"), Welcome: welcome, Key: "addMembers:" + did.String(),
				}})
			return make([]byte, 60), err
		}
	}
	var took [2][2]time.Duration // createConvo and addMembers, with and without
	round := func(i int) (took [2][2]time.Duration) {
		for j, key := range []string{fmt.Sprint("key ", i), ""} {
			var id uuid.UUID
			group := fmt.Appendf(nil, "group %d %d", i, j)
			took[0][j] = do("blue.catbird.mls.createConvo", key, create(&id, group))
			took[1][j] = do("blue.catbird.mls.addMembers", key, add(id, group, syntax.DID(fmt.Sprintf("did:plc:m%dx%d", i, j))))
		}
		return took
	}
	for i := range 100 { // warm up
		round(-1 - i)
	}
	b.ResetTimer()
	for i := range b.N {
		for m, pair := range round(i) {
			took[m][0] += pair[0]
			took[m][1] += pair[1]
		}
	}
	b.ReportMetric(float64(took[0][0])/float64(took[0][1]), "createConvo-with/without")
	b.ReportMetric(float64(took[1][0])/float64(took[1][1]), "addMembers-with/without")
}
