package convos_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"mlsd/convos"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/pgtest"
)

// TestRemoverGoesOn: a convo whose rest cannot be deleted delays none that was deleted later.
func TestRemoverGoesOn(t *testing.T) {
	t.Parallel()
	db, faults := pgtest.Database(t), failpoint.New()
	remover := convos.NewRemover(db, faults)
	first, second := uuid.New(), uuid.New()
	_, err := db.Exec(t.Context(), `
		WITH log AS (
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT unnest(ARRAY[$1::uuid, $2]), 1, 1, 'did:plc:alice', 1, '', 'k', '', now()
		)
		INSERT INTO deleted_convos (id, group_hash, deleted_at) VALUES ($1, 'a', now() - interval '1 h'), ($2, 'b', now())`,
		first, second)
	if err != nil {
		t.Fatal(err)
	}
	unfinished := func() (n, entries int, first uuid.UUID) {
		err := db.QueryRow(t.Context(), `
			SELECT count(*), (SELECT count(*) FROM messages), coalesce((array_agg(id))[1], $1)
			FROM deleted_convos WHERE purged_at IS NULL`, uuid.Nil).Scan(&n, &entries, &first)
		if err != nil {
			t.Fatal(err)
		}
		return n, entries, first
	}
	failpointtest.Arm(t, faults, failpoint.AfterCommit, convos.NSIDDelete, failpoint.Error)
	if err := remover.RunOnce(t.Context()); !errors.Is(err, failpoint.ErrInjected) {
		t.Errorf("the first round: %v", err)
	}
	if n, entries, id := unfinished(); n != 1 || entries != 1 || id != first {
		t.Errorf("after the first round: %d convos, %d entries, %s", n, entries, id)
	}
	if err := remover.RunOnce(t.Context()); err != nil {
		t.Errorf("the second round: %v", err)
	}
	if n, entries, _ := unfinished(); n != 0 || entries != 0 {
		t.Errorf("after the second round: %d convos, %d entries", n, entries)
	}
}
