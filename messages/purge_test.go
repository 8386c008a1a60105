package messages_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/messages"
)

// TestPurgeInBatches: a batch of a deletion is bounded in entries and in bytes, and has an entry even
// if that is larger. The floor goes with the call that finds nothing. Another log stays.
func TestPurgeInBatches(t *testing.T) {
	t.Parallel()
	db, convo, other := pgtest.Database(t), uuid.New(), uuid.New()
	for _, id := range []uuid.UUID{convo, other} {
		_, err := db.Exec(t.Context(), `
			WITH floor AS (INSERT INTO log_floors (convo_id, seq) VALUES ($1, 2))
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT $1, seq, 1, 'did:plc:alice', 1, convert_to(repeat('x', size), 'UTF8'), seq::text, '', now()
			FROM unnest(ARRAY[10, 10, 10, 10, 10, 500, 90, 10, 1]) WITH ORDINALITY AS entry (size, seq)`, id)
		if err != nil {
			t.Fatal(err)
		}
	}
	count := func(convo uuid.UUID) (entries, floors int) {
		err := db.QueryRow(t.Context(), `
			SELECT (SELECT count(*) FROM messages WHERE convo_id = $1), (SELECT count(*) FROM log_floors WHERE convo_id = $1)`,
			convo).Scan(&entries, &floors)
		if err != nil {
			t.Fatal(err)
		}
		return entries, floors
	}
	var batches []int64
	for len(batches) == 0 || batches[len(batches)-1] > 0 {
		if _, floors := count(convo); floors != 1 {
			t.Errorf("the floor is gone after %v", batches)
		}
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			n, err := messages.Purge(t.Context(), tx, convo, 4, 100)
			batches = append(batches, n)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := []int64{4, 1, 1, 2, 1, 0}; !slices.Equal(batches, want) {
		t.Errorf("the batches deleted %v, want %v", batches, want)
	}
	if entries, floors := count(convo); entries != 0 || floors != 0 {
		t.Errorf("%d entries and %d floors are left", entries, floors)
	}
	if entries, floors := count(other); entries != 9 || floors != 1 {
		t.Errorf("the other log has %d entries and %d floors", entries, floors)
	}
}
