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
	benchBytes   = flag.Int("bytes", 1024, "bytes of each entry")
)

// BenchmarkCheck checks a database without violations. Its events are in the stream, and every 30th
// entry of a log is a commit.
func BenchmarkCheck(b *testing.B) {
	db := pgtest.Database(b, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["statement_timeout"] = "0" })
	ids := fill(b, db, *benchConvos, *benchEntries)
	wantNone := func(b *testing.B, violations []string, err error) {
		if err != nil || len(violations) > 0 {
			b.Fatalf("%.10q, %v", violations, err)
		}
	}
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			violations, err := invariants.NewChecker(db).Check(b.Context(), invariants.Scope{Within: 24 * time.Hour})
			wantNone(b, violations, err)
		}
	})
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("sample/%d", n), func(b *testing.B) {
			for b.Loop() {
				violations, err := invariants.NewChecker(db).Check(b.Context(), invariants.Scope{Sample: n})
				wantNone(b, violations, err)
			}
		})
	}
	b.Run("one", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			violations, err := invariants.CheckConvo(b.Context(), db, ids[i%len(ids)])
			wantNone(b, violations, err)
		}
	})
}

// fill writes convos with logs of messages, and returns their ids.
func fill(b *testing.B, db *pgxpool.Pool, convos, entries int) []uuid.UUID {
	b.Helper()
	const perEpoch = 30
	exec := func(sql string, args ...any) {
		b.Helper()
		if _, err := db.Exec(b.Context(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	exec(`CREATE TABLE bodies (convo_id uuid, kind smallint, epoch bigint, body bytea, PRIMARY KEY (convo_id, kind,
			epoch))`)
	padding := string(make([]byte, *benchBytes))
	var ids []uuid.UUID
	var bodies [][]any
	for i := range convos {
		id, group := uuid.New(), fmt.Appendf(nil, "group %d", i)
		ids = append(ids, id)
		exec(`
			INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at)
			VALUES ($1, $2, 'did:plc:alice', 1, $3, $4, now())`, id, group, 1+entries/perEpoch, entries)
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
	exec(`
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT convo_id, seq, kind, CASE seq % 2 WHEN 0 THEN 'did:plc:alice' ELSE 'did:plc:bob' END, epoch, body,
			'addMembers:' || gen_random_uuid(), decode(md5(seq::text), 'hex'), now() - interval '1 hour' + seq * interval
				'1 second'
		FROM generate_series(1, $1::bigint) AS seq
		JOIN bodies ON kind = CASE seq % $2::bigint WHEN 0 THEN 3 ELSE 1 END AND epoch = 1 + seq / $2::bigint
		ORDER BY seq, convo_id`, entries, perEpoch)
	exec(`
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
			expires_at)
		SELECT sender_did, 'blue.catbird.mls.addMembers', convo_id, split_part(idempotency_key, ':', 2), request_hash, '{}',
			'{}',
			created_at, created_at + interval '7 days'
		FROM messages WHERE kind = 3`)
	exec(`CREATE TABLE events_20200101 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')`)
	exec(`
		INSERT INTO events (stream_seq, day, kind, convo_id, seq, size, created_at)
		SELECT (SELECT head FROM stream) + row_number() OVER (ORDER BY seq, convo_id), '2020-01-01', kind, convo_id, seq,
			1024, created_at
		FROM messages`)
	exec(`UPDATE stream SET head = (SELECT max(stream_seq) FROM events), day = '2020-01-01'`)
	exec(`INSERT INTO event_days VALUES ('2020-01-01', 1)`)
	exec(`DROP TABLE bodies`)
	exec(`ANALYZE`)
	return ids
}
