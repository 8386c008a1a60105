package messages

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// plainSend writes a message of 1 KiB in the plainest way: one statement in one transaction writes
// the message with its seq, under the convo's row lock, and its event. It does not check key,
// membership or epoch, and the body is made in the database.
const plainSend = `\set n random(1, :convos)
WITH convo AS (
	UPDATE convos SET last_seq = last_seq + 1, last_message_at = now() WHERE id = bench_convo(:n) RETURNING id, last_seq,
		creator_did
), entry AS (
	INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
	SELECT id, last_seq, 1, creator_did, 1, decode(repeat('5a', 1060), 'hex'), gen_random_uuid()::text, decode(repeat('5a',
		32), 'hex'), now()
	FROM convo RETURNING convo_id, seq
)
INSERT INTO outbox (kind, convo_id, seq, size, created_at) SELECT 1, convo_id, seq, 1060, now() FROM entry;
`

// judgedSend writes a message as a server with a transaction for each message would: bench_send
// judges it as Log.Send does, in one round trip. The body and the hash are not encoded: text
// without a backslash is bytea in its escape form.
const judgedSend = `\set n random(1, :convos)
\set k random(1, 4611686018427387903)
SELECT bench_send(bench_convo(:n), bench_convo(:n), :sender, 'sha256-0000000000000000000000000000000000000000000000' ||
	:k::text,
	:hash, 1::smallint, 1, :body, 0);
`

// benchFunctions are what the scripts call. bench_convo is the id of the nth convo, and group ids
// are made of them. bench_send takes the convo's row lock first, so that no seq is used twice. The
// statements after it see what the last holder of the lock committed, because each statement of a
// function has a snapshot of its own.
const benchFunctions = `
CREATE FUNCTION bench_convo(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS
	$$SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid$$;
CREATE FUNCTION bench_send(convo uuid, header_group uuid, sender text, key text, hash bytea, kind smallint, header_epoch
	bigint, body bytea,
	epoch_window bigint) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	c record;
	m record;
	earlier record;
	at timestamptz := date_trunc('milliseconds', clock_timestamp());
BEGIN
	PERFORM FROM members WHERE members.convo_id = convo AND members.did = sender;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'convo-not-found';
	END IF;
	SELECT convos.group_id, convos.epoch, convos.last_seq + 1 AS seq INTO c FROM convos WHERE convos.id = convo FOR NO KEY
		UPDATE;
	SELECT messages.seq, messages.created_at, messages.request_hash INTO earlier FROM messages
	WHERE messages.convo_id = convo AND messages.sender_did = sender AND messages.idempotency_key = key AND messages.kind
		<> 3;
	IF FOUND THEN
		IF earlier.request_hash <> hash THEN
			RAISE EXCEPTION 'conflict';
		END IF;
		RETURN earlier.seq;
	END IF;
	SELECT members.left_at INTO m FROM members WHERE members.convo_id = convo AND members.did = sender;
	IF m.left_at IS NOT NULL THEN
		RAISE EXCEPTION 'not-member';
	ELSIF c.group_id <> uuid_send(header_group) THEN
		RAISE EXCEPTION 'wrong-group';
	ELSIF header_epoch > c.epoch OR header_epoch < c.epoch - epoch_window THEN
		RAISE EXCEPTION 'wrong-epoch';
	END IF;
	INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
	VALUES (convo, c.seq, kind, sender, header_epoch, body, key, hash, at);
	UPDATE convos SET last_seq = c.seq, last_message_at = at WHERE convos.id = convo;
	INSERT INTO outbox (kind, convo_id, seq, size, created_at) VALUES (kind, convo, c.seq, octet_length(body), at);
	IF EXISTS (SELECT FROM push_targets) THEN
		INSERT INTO push_convos (convo_id, sender_did, created_at) VALUES (convo, sender, at)
		ON CONFLICT (convo_id, sender_did) DO UPDATE SET sender_did = excluded.sender_did WHERE false;
	END IF;
	RETURN c.seq;
END
$$`

// benchConvo is bench_convo.
func benchConvo(n int) uuid.UUID {
	id := uuid.MustParse("01900000-0000-7000-8000-000000000000")
	id[14], id[15] = byte(n>>8), byte(n)
	return id
}

// BenchmarkPgbench compares Send with pgbench, which writes to the same tables of the same server
// in two ways: a transaction for each message that judges it as Send does, and one that does not
// judge. The three alternate.
func BenchmarkPgbench(b *testing.B) {
	pgbench := findPgbench(b)
	for _, c := range []struct{ inFlight, convos int }{{1, 1}, {1, 1000}, {128, 1}, {128, 1000}} {
		b.Run(fmt.Sprintf("inflight=%d/convos=%d", c.inFlight, c.convos), func(b *testing.B) {
			g := newGroupBench(b, c.convos)
			if _, err := g.db.Exec(b.Context(), benchFunctions); err != nil {
				b.Fatal(err)
			}
			ways := []struct {
				name, script string
				rates, lats  []float64 // ours ÷ theirs of one round
				all          []float64 // messages/s
			}{{name: "judged", script: judgedSend}, {name: "plain", script: plainSend}}
			bench := func(script string) (rate float64, lat time.Duration) {
				p := pgbenchRun{program: pgbench, url: g.db.Config().ConnString(), script: script, clients: c.inFlight,
					convos: c.convos}
				return p.run(b)
			}
			perRound := 2500 * min(c.inFlight, 16)
			g.run(b, c.inFlight, 500, g.batched) // warm up
			bench(judgedSend)
			var rates, lats []float64
			b.ResetTimer()
			for range b.N {
				took, all := g.run(b, c.inFlight, perRound, g.batched)
				rate, lat := float64(perRound)/took.Seconds(), median(all).Seconds()
				rates, lats = append(rates, rate), append(lats, lat)
				for i := range ways {
					w := &ways[i]
					theirs, theirLat := bench(w.script)
					w.all, w.rates, w.lats = append(w.all, theirs), append(w.rates, rate/theirs),
						append(w.lats, lat/theirLat.Seconds())
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(rates), "messages/s")
			b.ReportMetric(median(lats)*1e6, "µs-p50")
			for _, w := range ways {
				b.ReportMetric(median(w.all), "messages/s-"+w.name)
				b.ReportMetric(median(w.rates), "rate-ratio-"+w.name)
				b.ReportMetric(median(w.lats), "p50-ratio-"+w.name)
			}
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

// pgbenchRun is two seconds of pgbench.
type pgbenchRun struct {
	program, url, script string
	clients, convos      int
}

// run returns the transactions per second and the median time that one took.
func (p pgbenchRun) run(b *testing.B) (rate float64, p50 time.Duration) {
	b.Helper()
	dir := b.TempDir()
	script := filepath.Join(dir, "send.sql")
	if err := os.WriteFile(script, []byte(p.script), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), p.program, "-n", "-M", "prepared", "-f", script, "-D",
		fmt.Sprint("convos=", p.convos),
		"-D", "sender=did:plc:alice", "-D", "body="+strings.Repeat("Z", 1060), "-D", "hash="+strings.Repeat("Z", 32),
		"-c", fmt.Sprint(p.clients), "-j", "2", "-T", "2", "--log", "--log-prefix", filepath.Join(dir, "log"), p.url)
	// These are the settings of our own sessions. Without them PostgreSQL keeps plans that scan
	// tables, from when the tables were empty.
	cmd.Env = append(os.Environ(),
		"PGOPTIONS=-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_bitmapscan=off -c jit=off")
	out, err := cmd.CombinedOutput()
	found := tpsLine.FindSubmatch(out)
	if err != nil || found == nil {
		b.Fatalf("%v\n%.1000s", err, out)
	}
	if rate, err = strconv.ParseFloat(string(found[1]), 64); err != nil {
		b.Fatal(err)
	}
	return rate, p.median(b, dir)
}

// median reads the log of pgbench: client, number and time (µs) of each transaction.
func (p pgbenchRun) median(b *testing.B, dir string) time.Duration {
	b.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil || len(logs) == 0 {
		b.Fatalf("no logs: %v", err)
	}
	var took []time.Duration
	for _, path := range logs {
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			µs, err := strconv.Atoi(fields[2])
			if err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Duration(µs)*time.Microsecond)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
	return median(took)
}
