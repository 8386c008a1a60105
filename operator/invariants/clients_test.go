package invariants_test

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/internal/mlstest"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/operator/invariants"
)

// Finding S8: a client that has lost its idempotency keys sends the same bytes twice. This is found,
// and is no broken promise of the server. Equal proposals and messages of other senders are no
// fault.
func TestRepeatedMessages(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	wantFaults := func(id *uuid.UUID, want ...string) {
		t.Helper()
		got, err := invariants.ClientFaults(t.Context(), db, id)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	wantFaults(nil)
	group := []byte("the group")
	log := messages.NewLog(db, 0, uncounted{}, slog.New(slog.DiscardHandler), nil)
	send := func(key, body string, draft messages.Draft) {
		t.Helper()
		draft.ConvoID, draft.GroupID, draft.Epoch, draft.Key = ids[0], group, 3, key
		if draft.Kind == 0 {
			draft.Kind, draft.Body = mls.ContentTypeApplication, mlstest.Message(group, 3, body)
		} else {
			draft.Body = mlstest.Proposal(group, 3, body)
		}
		results, err := log.Append(t.Context(), []messages.Draft{draft})
		if err != nil || results[0].Err != nil {
			t.Fatal(err, results[0].Err)
		}
	}
	padding := string(make([]byte, 20000)) // stored out of line
	send("k1", padding+"once", messages.Draft{Sender: bob})
	send("k1", padding+"once", messages.Draft{Sender: bob}) // a replay
	send("k2", padding+"another", messages.Draft{Sender: bob})
	send("k3", padding+"once", messages.Draft{Sender: alice})
	send("k4", "please", messages.Draft{Sender: bob, Kind: mls.ContentTypeProposal})
	send("k5", "please", messages.Draft{Sender: bob, Kind: mls.ContentTypeProposal})
	wantFaults(&ids[0])
	send("k6", padding+"once", messages.Draft{Sender: bob})
	fault := "convo " + ids[0].String() + ": a client has lost its keys: entries 5, 10 have the same bytes"
	wantFaults(&ids[0], fault)
	wantFaults(&ids[1])
	wantFaults(nil) // the stream does not have the messages yet
	_, err := db.Exec(t.Context(), `
		WITH moved AS (DELETE FROM outbox RETURNING *)
		INSERT INTO events
		SELECT 6 + row_number() OVER (ORDER BY id), '2020-01-01', kind, convo_id, seq, did, size, detail, created_at FROM
			moved`)
	if err != nil {
		t.Fatal(err)
	}
	wantFaults(nil, fault)
	if _, err := db.Exec(t.Context(), `UPDATE stream SET head = (SELECT max(stream_seq) FROM events)`); err != nil {
		t.Fatal(err)
	}
	if violations, err := invariants.Check(t.Context(), db); err != nil || len(violations) > 0 {
		t.Errorf("%q, %v", violations, err)
	}
}
