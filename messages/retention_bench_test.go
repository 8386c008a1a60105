package messages

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/internal/worker"
	"mlsd/mls"
)

var written = flag.Int64("written", 0, "millions of messages that BenchmarkRetention writes")

// BenchmarkRetention writes messages of 100 bytes as fast as it can, in batches of 256 over 1,000
// convos, while messages older than ten seconds expire. It logs the sizes of the tables twenty
// times.
func BenchmarkRetention(b *testing.B) {
	if *written == 0 {
		b.Skip("for minutes: only with -written")
	}
	g := newGroupBench(b, 1000)
	e := NewSweeper(g.db, 10*time.Second, func(int64) {}, nil)
	ctx, cancel := context.WithCancel(b.Context())
	var expired atomic.Int64
	var expiring, writing sync.WaitGroup
	expiring.Go(func() {
		for ctx.Err() == nil {
			n, err := e.RunOnce(ctx)
			if expired.Add(n); err != nil && ctx.Err() == nil {
				b.Error(err)
				return
			}
			// There is no sequencer here that would empty the outbox.
			if _, err := g.db.Exec(ctx, `TRUNCATE outbox`); err != nil && ctx.Err() == nil {
				b.Error(err)
				return
			}
			worker.Pause(ctx, time.Second)
		}
	})
	total := *written * 1e6
	var sent atomic.Int64
	begun := time.Now()
	for range 2 {
		writing.Go(func() {
			for sent.Load() < total && !b.Failed() {
				drafts := make([]Draft, batchDrafts)
				for i := range drafts {
					drafts[i] = g.small()
				}
				if _, err := g.log.Append(ctx, drafts); err != nil {
					b.Error(err)
				}
				if n := sent.Add(batchDrafts); n/(total/20) != (n-batchDrafts)/(total/20) {
					b.Logf("%9d written, %9d expired, %s", n, expired.Load(), g.sizes(b))
				}
			}
		})
	}
	writing.Wait()
	cancel()
	expiring.Wait()
	b.ReportMetric(float64(total)/time.Since(begun).Seconds(), "messages/s")
}

// small returns a draft with a small body.
func (g *groupBench) small() Draft {
	i := g.sent.Add(1)
	convo := g.convos[int(i)%len(g.convos)]
	return Draft{
		ConvoID: convo, GroupID: convo[:], Sender: "did:plc:alice", Key: fmt.Sprintf("%036d", i),
		Kind: mls.ContentTypeApplication, Epoch: 1,
		Body: mlstest.Message(convo[:], 1, fmt.Sprintf("%050d", i)),
		Hash: idem.Content{{Name: "ciphertext", JSON: fmt.Appendf(nil, "%d", i)}}.Hash(),
	}
}

// sizes returns the disk space of messages and their indexes, as text.
func (g *groupBench) sizes(b *testing.B) (text string) {
	err := g.db.QueryRow(b.Context(), `
		SELECT format('messages: rows %s, table %s MB, indexes %s MB; convos %s kB',
			(SELECT sum(last_seq - coalesce(f.seq, 0)) FROM convos c LEFT JOIN log_floors f ON f.convo_id = c.id),
			pg_table_size('messages') >> 20, pg_indexes_size('messages') >> 20, pg_total_relation_size('convos') >> 10)`).
		Scan(&text)
	if err != nil {
		b.Error(err)
	}
	return text
}
