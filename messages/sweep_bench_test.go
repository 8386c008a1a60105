package messages_test

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"mlsd/internal/pgtest"
	"mlsd/messages"
)

var sweptLog = flag.Int("swept", 20_000, "messages of the log in BenchmarkSweep")

// BenchmarkSweep deletes a log of messages of 1 KiB. It reports the processor time of the database
// per message, how many messages a second the sweeper deletes with its rests, and after how many ms
// the first messages are gone.
func BenchmarkSweep(b *testing.B) {
	var database, took, first time.Duration
	for range b.N {
		g := newSenders(b, 1, false)
		for _, sql := range []string{`
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT id, i, 1, 'did:plc:alice', 1, decode(repeat(md5(i::text), 66), 'hex'), gen_random_uuid(),
				decode(repeat(md5(i::text), 2), 'hex'), '2026-01-01'::timestamptz + i * interval '1 s'
			FROM convos, generate_series(1, $1::bigint) AS i`, `
			UPDATE convos SET last_seq = $1`, `
			ANALYZE messages`} {
			if _, err := g.db.Exec(b.Context(), sql,
				slices.Repeat([]any{*sweptLog}, strings.Count(sql, "$1"))...); err != nil {
				b.Fatal(err)
			}
		}
		var begun time.Time
		early := time.Duration(0)
		sweeper := messages.NewSweeper(g.db, time.Hour, func(int64) {
			if early == 0 {
				early = time.Since(begun)
			}
		}, nil)
		at := pgtest.ProcessorTime(b, g.db)
		begun = time.Now()
		if n, err := sweeper.RunOnce(b.Context()); err != nil || n != int64(*sweptLog) {
			b.Fatalf("%d of %d messages, %v", n, *sweptLog, err)
		}
		took, first = took+time.Since(begun), first+early
		database += time.Duration(pgtest.ProcessorTime(b, g.db) - at)
	}
	all := float64(b.N * *sweptLog)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(database.Nanoseconds())/all/1000, "database-µs/message")
	b.ReportMetric(all/took.Seconds(), "messages/s")
	b.ReportMetric(float64(first.Microseconds())/float64(b.N)/1000, "ms-to-first")
}
