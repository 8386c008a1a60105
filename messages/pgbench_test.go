package messages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

// pgbenchSend writes a message of 1 KiB as plainly as PostgreSQL can be asked to: one statement in one transaction, with its seq under
// the convo's row lock and its event, without looking at key, membership or epoch, and with a body that is not even sent.
const pgbenchSend = `\set n random(1, :convos)
WITH convo AS (
	UPDATE convos SET last_seq = last_seq + 1, last_message_at = now() WHERE id = (SELECT id FROM bench_convos WHERE n = :n) RETURNING id, last_seq, creator_did
), entry AS (
	INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
	SELECT id, last_seq, 1, creator_did, 1, decode(repeat('5a', 1060), 'hex'), gen_random_uuid()::text, decode(repeat('5a', 32), 'hex'), now()
	FROM convo RETURNING convo_id, seq
)
INSERT INTO outbox (kind, convo_id, seq, size, created_at) SELECT 1, convo_id, seq, 1060, now() FROM entry;
`

// BenchmarkPgbench compares Send with pgbench, which writes to the same tables of the same server, in turns.
func BenchmarkPgbench(b *testing.B) {
	pgbench := findPgbench(b)
	script := filepath.Join(b.TempDir(), "send.sql")
	if err := os.WriteFile(script, []byte(pgbenchSend), 0o600); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct{ inFlight, convos int }{{1, 1}, {1, 1000}, {128, 1}, {128, 1000}} {
		b.Run(fmt.Sprintf("inflight=%d/convos=%d", c.inFlight, c.convos), func(b *testing.B) {
			g := newGroupBench(b, c.convos)
			_, err := g.db.Exec(b.Context(), `
				CREATE TABLE bench_convos AS SELECT row_number() OVER (ORDER BY id)::integer AS n, id FROM convos;
				ALTER TABLE bench_convos ADD PRIMARY KEY (n)`)
			if err != nil {
				b.Fatal(err)
			}
			turn := 2500 * min(c.inFlight, 16)
			g.run(b, c.inFlight, 500, g.batched) // warm up
			var ours, theirs []float64           // messages/s
			var lats []time.Duration
			b.ResetTimer()
			for range b.N {
				took, lat := g.run(b, c.inFlight, turn, g.batched)
				ours = append(ours, float64(turn)/took.Seconds())
				lats = append(lats, median(lat))
				theirs = append(theirs, tps(b, pgbench, g.db.Config().ConnString(), script, c.inFlight, c.convos))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ours), "messages/s")
			b.ReportMetric(median(theirs), "messages/s-pgbench")
			b.ReportMetric(median(ours)/median(theirs), "ratio")
			b.ReportMetric(float64(median(lats).Microseconds()), "µs-p50")
			b.ReportMetric(median(lats).Seconds()*median(theirs)/float64(c.inFlight), "latency-ratio")
		})
	}
}

func findPgbench(b *testing.B) string {
	b.Helper()
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if err != nil || len(found) == 0 {
		b.Skip("there is no pgbench here")
	}
	return slices.Max(found)
}

var tpsLine = regexp.MustCompile(`tps = ([0-9.]+)`)

// tps has pgbench run the script for three seconds.
func tps(b *testing.B, pgbench, url, script string, clients, convos int) float64 {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), pgbench, "-n", "-M", "prepared", "-f", script, "-D", fmt.Sprint("convos=", convos),
		"-c", fmt.Sprint(clients), "-j", "2", "-T", "3", url)
	out, err := cmd.CombinedOutput()
	found := tpsLine.FindSubmatch(out)
	if err != nil || found == nil {
		b.Fatalf("%v\n%.1000s", err, out)
	}
	rate, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return rate
}
