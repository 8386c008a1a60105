package outbox_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgtest"
	"mlsd/outbox"
)

// Events are inserted in their order, each with what its convo's row says at that time. An event of
// no convo has no seq, and an event without a detail stores none.
func TestQueue(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	convo := uuid.Must(uuid.NewV7())
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at)
		VALUES ($1, 'group', 'did:plc:alice', 1, 1, 6, now())`, convo)
	outbox.Queue(batch, convo)
	outbox.Queue(batch, convo, outbox.Event{Kind: outbox.Dispute, Detail: outbox.Detail{Change: outbox.Forked, Epoch: 1}})
	batch.Queue(`UPDATE convos SET last_seq = 7`)
	outbox.Queue(batch, convo, outbox.Event{Kind: outbox.Commit, Size: 5},
		outbox.Event{Kind: outbox.Membership, DID: "did:plc:bob", Detail: outbox.Detail{Change: outbox.Joined, Epoch: 2}},
		outbox.Event{Kind: outbox.Membership, DID: "did:plc:alice", Detail: outbox.Detail{Change: outbox.Left, Epoch: 2}})
	outbox.Queue(batch, uuid.Nil, outbox.Event{Kind: outbox.Invitation, DID: "did:plc:carol",
		Detail: outbox.Detail{ConvoID: "elsewhere"}})
	if err := db.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Query(t.Context(), `
		SELECT concat_ws(' ', kind, CASE convo_id WHEN $1 THEN 'of the convo' END, seq, did, size, detail)
		FROM outbox ORDER BY id`, convo)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{
		`7 of the convo 6 0 {"epoch": 1, "change": "forked"}`,
		`3 of the convo 7 5`,
		`4 of the convo 7 did:plc:bob 0 {"epoch": 2, "change": "joined"}`,
		`4 of the convo 7 did:plc:alice 0 {"epoch": 2, "change": "left"}`,
		`10 did:plc:carol 0 {"epoch": 0, "convoId": "elsewhere"}`,
	}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
