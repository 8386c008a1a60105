package messages_test

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

var largestLog = flag.Int("growth", 100_000,
	"messages in the largest database of BenchmarkGrowth; 10 million take 14 GB")

// BenchmarkGrowth sends to databases with few and with many messages, and with small and large
// rosters: 1,000 convos, 128 messages in flight. The databases are on one server and alternate. The
// result is the time of a round ÷ the time of a round of the smallest database.
func BenchmarkGrowth(b *testing.B) {
	const fewest = 10_000
	var sizes []growing
	for n := fewest; n <= *largestLog; n *= 10 {
		sizes = append(sizes, newGrowing(b, fmt.Sprint(n), n, 2))
	}
	b.Run("messages", func(b *testing.B) { inTurns(b, sizes) })
	rosters := []growing{newGrowing(b, "2", fewest, 2), newGrowing(b, "30", fewest, 30),
		newGrowing(b, "1000", fewest, 1000)}
	b.Run("members", func(b *testing.B) { inTurns(b, rosters) })
}

// growing is a database to which messages are sent.
type growing struct {
	*senders
	name string
}

// newGrowing returns a database with n messages of 1 KiB in 1,000 convos. Successive messages are
// in different convos, and their keys ascend as UUIDv7 do. The rows are inserted one by one, so
// that the indexes are like those of a database in use.
func newGrowing(b *testing.B, name string, n, members int) growing {
	b.Helper()
	const convos, chunk = 1000, 100_000
	g := growing{newSenders(b, convos, false), name}
	exec := func(sql string, args ...any) {
		b.Helper()
		if _, err := g.db.Exec(b.Context(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	for at := 1; at < members; at += 50 { // in parts, because of statement_timeout
		exec(`
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
			SELECT c, 'did:plc:member' || m, 'member', now(), 0
			FROM unnest($1::uuid[]) AS c, generate_series($2::integer, $3) AS m`, g.convos, at, min(at+49, members-1))
	}
	for from := 0; from < n; from += chunk {
		exec(`
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT ($4::uuid[])[i % $3 + 1], i / $3 + 1, 1, 'did:plc:alice', 1, decode(repeat(md5(i::text), 66), 'hex'),
				overlay(overlay(lpad(to_hex(1700000000000 + i), 12, '0') || '-7' || substr(md5(i::text), 1, 3) || '-8'
					|| substr(md5(i::text), 4, 15) PLACING '-' FROM 9 FOR 0) PLACING '-' FROM 24 FOR 0),
				decode(repeat(md5(i::text), 2), 'hex'), to_timestamp((1700000000000 + i) / 1000.0)
			FROM generate_series($1::bigint, $2::bigint) AS i`, from, min(n, from+chunk)-1, convos, g.convos)
	}
	exec(`UPDATE convos SET last_seq = $1::bigint / $2::bigint`, n, convos)
	exec(`VACUUM ANALYZE`)
	return g
}

// inTurns sends a round of messages to each database, again and again.
func inTurns(b *testing.B, all []growing) {
	const perRound = 2000
	took, wal, reads := make([][]time.Duration, len(all)), make([]int64, len(all)), make([]int64, len(all))
	if _, err := all[0].db.Exec(b.Context(), `CHECKPOINT`); err != nil { // write what filling the databases left
		b.Fatal(err)
	}
	for _, g := range all {
		g.send(b, 3*perRound) // the first write to a page after a checkpoint costs more: not measured
	}
	b.ResetTimer()
	for n := range b.N {
		for i := range all {
			j := (i + n) % len(all) // each database is the first one at times
			walBefore, readBefore := all[j].counters(b)
			d := all[j].send(b, perRound)
			walAfter, readAfter := all[j].counters(b)
			took[j], wal[j], reads[j] = append(took[j], d), wal[j]+walAfter-walBefore, reads[j]+readAfter-readBefore
		}
	}
	b.ReportMetric(0, "ns/op")
	sent := float64(b.N * perRound)
	for i, g := range all {
		ratios := make([]float64, b.N) // of rounds that were next to each other
		for n := range ratios {
			ratios[n] = float64(took[i][n]) / float64(took[0][n])
		}
		b.ReportMetric(median(ratios), "time-ratio-"+g.name)
		b.ReportMetric(perRound/median(slices.Clone(took[i])).Seconds(), "messages/s-"+g.name)
		b.ReportMetric(float64(wal[i])/sent, "WAL-bytes/message-"+g.name)
		b.ReportMetric(float64(reads[i])/sent, "pages-read/message-"+g.name)
	}
}

func median[T cmp.Ordered](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

// counters returns how much WAL the server has written, and how many pages the database has read
// that were not in its buffers.
func (g growing) counters(b *testing.B) (wal, read int64) {
	b.Helper()
	err := g.db.QueryRow(b.Context(), `
		SELECT pg_current_wal_lsn() - '0/0', blks_read FROM pg_stat_database WHERE datname = current_database()`).Scan(&wal,
		&read)
	if err != nil {
		b.Fatal(err)
	}
	return wal, read
}
