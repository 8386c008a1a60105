package invariants_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/operator/invariants"
)

var (
	benchConvos  = flag.Int("convos", 100, "convos that BenchmarkCheck looks at")
	benchEntries = flag.Int("entries", 100, "entries in the log of each of them")
	benchBody    = flag.Int("body", 1024, "bytes of each entry")
	benchPeople  = flag.Int("people", 100, "people with a hundred KeyPackages each")
)

// BenchmarkCheck checks a database without violations. Its events are in the stream, and every 30th
// entry of a log is a commit. A tenth of the entries is new, in all convos.
func BenchmarkCheck(b *testing.B) {
	db := pgtest.Database(b)
	ids := fill(b, db, *benchConvos, *benchEntries)
	wantNone := func(b *testing.B, violations []string, err error) {
		if err != nil || len(violations) > 0 {
			b.Fatalf("%.10q, %v", violations, err)
		}
	}
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			violations, err := invariants.Check(b.Context(), db)
			wantNone(b, violations, err)
		}
	})
	checker := invariants.NewChecker(db)
	b.Run("since", func(b *testing.B) {
		var since time.Time
		err := db.QueryRow(b.Context(), `SELECT max(created_at) - $1 * interval '1 second' FROM messages WHERE convo_id = $2`,
			*benchEntries/10, ids[0]).Scan(&since)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			violations, err := checker.Check(b.Context(), invariants.From(since))
			wantNone(b, violations, err)
		}
	})
	b.Run("part", func(b *testing.B) {
		var at invariants.Cursor
		var longest time.Duration
		parts := 0
		for b.Loop() {
			for !at.Done() {
				begun := time.Now()
				violations, next, err := checker.Part(b.Context(), at)
				wantNone(b, violations, err)
				b.Logf("%s: %s", time.Since(begun).Round(time.Millisecond), next.Checked())
				at, longest, parts = next, max(longest, time.Since(begun)), parts+1
			}
		}
		b.ReportMetric(longest.Seconds(), "longest-s")
		b.ReportMetric(float64(parts), "parts")
	})
	b.Run("sample", func(b *testing.B) {
		for b.Loop() {
			violations, err := checker.Sample(b.Context(), 1000)
			wantNone(b, violations, err)
		}
	})
	b.Run("one", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			violations, err := invariants.CheckConvo(b.Context(), db, ids[i%len(ids)])
			wantNone(b, violations, err)
		}
	})
}

// fill writes convos with logs and people with KeyPackages, and returns the ids of the convos.
func fill(b *testing.B, db *pgxpool.Pool, convos, entries int) []uuid.UUID {
	b.Helper()
	const perEpoch = 30
	chunk := max(1, 100_000/convos)
	exec := func(sql string, args ...any) {
		b.Helper()
		if _, err := db.Exec(b.Context(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	exec(`CREATE TABLE bodies (convo_id uuid, kind smallint, epoch bigint, body bytea, PRIMARY KEY (convo_id, kind,
			epoch))`)
	padding := string(make([]byte, *benchBody))
	var ids []uuid.UUID
	var bodies [][]any
	for i := range convos {
		id, group := uuid.Must(uuid.NewV7()), fmt.Appendf(nil, "group %d", i)
		ids = append(ids, id)
		exec(`
			INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at)
			VALUES ($1, $2, 'did:plc:alice', 1, $3, $4, now() - interval '2 days')`, id, group, 1+entries/perEpoch, entries)
		for epoch := int64(1); epoch <= int64(1+entries/perEpoch); epoch++ {
			bodies = append(bodies, []any{id, 1, epoch, mlstest.Message(group, epoch, padding)})
			// A commit's row has the epoch that the commit creates.
			bodies = append(bodies, []any{id, 3, epoch + 1, mlstest.Commit(group, epoch, padding)})
		}
	}
	if _, err := db.CopyFrom(b.Context(), pgx.Identifier{"bodies"}, []string{"convo_id", "kind", "epoch", "body"},
		pgx.CopyFromRows(bodies)); err != nil {
		b.Fatal(err)
	}
	exec(`
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		SELECT id, 'did:plc:' || who, CASE who WHEN 'alice' THEN 'creator' ELSE 'member' END, now(), 0
		FROM convos, unnest('{alice,bob,carol}'::text[]) AS who`)
	for from := 1; from <= entries; from += chunk { // in chunks, because of statement_timeout
		exec(`
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT convo_id, seq, kind, CASE seq % 2 WHEN 0 THEN 'did:plc:alice' ELSE 'did:plc:bob' END, epoch, body,
				'addMembers:' || gen_random_uuid(), decode(md5(seq::text), 'hex'),
				date_trunc('day', now()) + seq * interval '1 second'
			FROM generate_series($1::bigint, $2::bigint) AS seq
			JOIN bodies ON kind = CASE seq % $3::bigint WHEN 0 THEN 3 ELSE 1 END AND epoch = 1 + seq / $3::bigint
			ORDER BY seq, convo_id`, from, min(from+chunk-1, entries), perEpoch)
	}
	exec(`
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
			expires_at)
		SELECT sender_did, 'blue.catbird.mls.addMembers', convo_id, split_part(idempotency_key, ':', 2), request_hash, '{}',
			'{}',
			created_at, created_at + interval '7 days'
		FROM messages WHERE kind = 3`)
	exec(`UPDATE convos c SET last_message_at = (SELECT max(created_at) FROM messages WHERE convo_id = c.id AND seq =
		c.last_seq)`)
	exec(`
		DO $$
		BEGIN
			EXECUTE format('CREATE TABLE events_today PARTITION OF events FOR VALUES FROM (%L) TO (%L)', current_date,
				current_date + 1);
		END
		$$`)
	for from := 1; from <= entries; from += chunk {
		exec(`
			INSERT INTO events (stream_seq, day, kind, convo_id, seq, size, created_at)
			SELECT (SELECT head FROM stream) + row_number() OVER (ORDER BY seq, convo_id), current_date, kind, convo_id, seq,
				1024, created_at
			FROM messages WHERE seq BETWEEN $1 AND $2`, from, min(from+chunk-1, entries))
		exec(`UPDATE stream SET head = (SELECT max(stream_seq) FROM events), day = current_date`)
	}
	exec(`INSERT INTO event_days VALUES (current_date, 1)`)
	for from := 0; from < *benchPeople; from += 1000 {
		exec(`
			WITH package AS (
				INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, created_at)
				SELECT 'did:plc:' || person, decode(md5(person || ' ' || n), 'hex'), 'phone', 1, repeat('x', 300)::bytea,
					now() + interval '30 days', false, now()
				FROM generate_series($1::int, $2::int) AS person, generate_series(1, 100) AS n RETURNING did, ref
			)
			INSERT INTO key_package_init_keys (did, init_key, ref) SELECT did, ref, ref FROM package`,
			from+1, min(from+1000, *benchPeople))
	}
	exec(`DROP TABLE bodies`)
	exec(`ANALYZE`)
	return ids
}
