package messages

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/mls"
)

type uncounted struct{}

func (uncounted) First(string)         {}
func (uncounted) Replayed(string)      {}
func (uncounted) Conflicted(string)    {}
func (uncounted) InProgress(string)    {}
func (uncounted) Expired(string)       {}
func (uncounted) TakenOver(string)     {}
func (uncounted) HeartbeatLost(string) {}

// BenchmarkGroupCommit sends messages of 1 KiB in three ways: in batches, each message in a
// transaction of its own, and each in a transaction with round trips for BEGIN and COMMIT. The ways
// alternate, so that the machine's load is the same for all.
func BenchmarkGroupCommit(b *testing.B) {
	for _, c := range []struct{ inFlight, convos int }{{1, 1}, {1, 1000}, {128, 1}, {128, 1000}} {
		b.Run(fmt.Sprintf("inflight=%d/convos=%d", c.inFlight, c.convos), func(b *testing.B) {
			g := newGroupBench(b, c.convos)
			ways := []struct {
				name     string
				send     func(ctx context.Context, d Draft) error
				perRound int // messages
				took     []time.Duration
				lats     []time.Duration
			}{
				{name: "on", send: g.batched, perRound: 2000 * min(c.inFlight, 8)}, {name: "off", send: g.alone, perRound: 2000},
			}
			for i := range ways {
				g.run(b, c.inFlight, 300, ways[i].send) // warm up
			}
			b.ResetTimer()
			for range b.N {
				for i := range ways {
					w := &ways[i]
					took, lats := g.run(b, c.inFlight, w.perRound, w.send)
					w.took = append(w.took, took/time.Duration(w.perRound))
					w.lats = append(w.lats, median(lats))
				}
			}
			on, off := &ways[0], &ways[1]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(time.Second)/float64(median(on.took)), "messages/s-on")
			b.ReportMetric(float64(median(off.took))/float64(median(on.took)), "rate-on/off")
			b.ReportMetric(float64(median(on.lats).Microseconds()), "µs-on-p50")
			b.ReportMetric(float64(median(on.lats))/float64(median(off.lats)), "latency-on/off")
		})
	}
}

func median[T cmp.Ordered](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

type groupBench struct {
	db     *pgxpool.Pool
	log    *Log
	convos []uuid.UUID
	sent   atomic.Int64
}

func newGroupBench(b *testing.B, convos int) *groupBench {
	b.Helper()
	g := &groupBench{db: pgtest.Database(b, pgtest.MaxConns(32))}
	g.log = NewLog(g.db, 0, uncounted{}, slog.New(slog.DiscardHandler), nil)
	for i := range convos {
		id := benchConvo(i + 1)
		g.convos = append(g.convos, id)
		_, err := g.db.Exec(b.Context(), `
			WITH convo AS (
				INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2, 'did:plc:alice', 1,
					1, now())
			)
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, 'did:plc:alice', 'creator', now(), 0)`,
			id, id[:])
		if err != nil {
			b.Fatal(err)
		}
	}
	return g
}

// run sends n messages, inFlight at a time, and returns the time of all and of each.
func (g *groupBench) run(b *testing.B, inFlight, n int, send func(context.Context, Draft) error) (time.Duration,
	[]time.Duration) {
	b.Helper()
	lats := make([]time.Duration, n)
	var next atomic.Int64
	var sending sync.WaitGroup
	begun := time.Now()
	for range inFlight {
		sending.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				d := g.draft()
				at := time.Now()
				if err := send(b.Context(), d); err != nil {
					b.Error(err)
					return
				}
				lats[i] = time.Since(at)
			}
		})
	}
	sending.Wait()
	return time.Since(begun), lats
}

func (g *groupBench) draft() Draft {
	i := g.sent.Add(1)
	convo := g.convos[int(i)%len(g.convos)]
	return Draft{
		ConvoID: convo, GroupID: convo[:], Sender: "did:plc:alice", Key: fmt.Sprintf("sha256:%064x", i),
		Kind: mls.ContentTypeApplication, Epoch: 1,
		Body: mlstest.Message(convo[:], 1, fmt.Sprintf("%01024d", i)),
		Hash: idem.Content{{Name: "ciphertext", JSON: fmt.Appendf(nil, "%d", i)}}.Hash(),
	}
}

func (g *groupBench) batched(ctx context.Context, d Draft) error {
	_, err := g.log.Send(ctx, d)
	return err
}

func (g *groupBench) alone(ctx context.Context, d Draft) error {
	results, err := g.log.Append(ctx, []Draft{d})
	if err == nil {
		err = results[0].Err
	}
	return err
}
