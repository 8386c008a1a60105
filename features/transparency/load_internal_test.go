package transparency

import (
	"bytes"
	"testing"

	"github.com/google/uuid"

	"mlsd/internal/pgtest"
)

// A reading of many logs is bounded in sum. A log that was not read any more stays as it is: what is
// below its floor is not taken for expired.
func TestReadingIsBoundedInSum(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	var trees []*tree
	for range 8 {
		convo := uuid.Must(uuid.NewV7())
		_, err := db.Exec(t.Context(), `
			WITH c AS (
				INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at, last_seq) VALUES ($1, $2,
					'did:plc:alice', 1, 1, now(), 3)
			), s AS (
				INSERT INTO log_senders (convo_id, did, tag) VALUES ($1, 'did:plc:alice', $3)
			), f AS (
				INSERT INTO log_floors (convo_id, seq) VALUES ($1, 2)
			)
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT $1, n, 2, 'did:plc:alice', 1, $4, n::text, '', now() FROM generate_series(1, 3) n`,
			convo, convo[:], make([]byte, 32), bytes.Repeat([]byte("x"), 1000))
		if err != nil {
			t.Fatal(err)
		}
		trees = append(trees, newTree(convo))
	}
	for round, want := range []struct{ complete, cut int }{{2, 6}, {4, 4}, {6, 2}, {8, 0}} {
		parts, err := load(t.Context(), db, trees, bounds{entries: 10, bytes: 5000, sum: 7000})
		if err != nil {
			t.Fatal(err)
		}
		var hashed int64
		complete, cut := 0, 0
		for _, one := range trees {
			p := parts[one.convo]
			hashed += p.hashed
			if p.cut {
				cut++
			}
			if _, err := one.take(p, 10); err != nil {
				t.Fatal(err)
			}
			if one.edge.Size == 3 {
				complete++
			} else if one.edge.Size != 0 {
				t.Errorf("a log that was cut has %d entries", one.edge.Size)
			}
		}
		if complete != want.complete || cut != want.cut || hashed != 6000 {
			t.Errorf("round %d: %d logs are complete, %d were cut, %d bytes were hashed", round, complete, cut, hashed)
		}
	}
	parts, err := load(t.Context(), db, []*tree{newTree(trees[0].convo), newTree(trees[1].convo)},
		bounds{entries: 10, bytes: 1, sum: 1})
	if p := parts[trees[0].convo]; err != nil || len(p.entries) != 1 || p.hashed != 1000 || !parts[trees[1].convo].cut {
		t.Errorf("with small bounds the first log has %+v, %v", p, err)
	}
}
