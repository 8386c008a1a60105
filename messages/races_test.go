package messages_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/mlstest"
	"mlsd/internal/nsid"
	"mlsd/messages"
)

// A sender joins between the statement that locks convos and uses up tokens, and the one that reads
// the facts. Its message is written, with the token that the request carries.
func TestJoinedBetweenStatements(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1))
	token := f.mint(t)
	d := with(token(), f.draft(f.convos[0], carol, "k", "x")) // carol is a former member
	other := with(token(), f.draft(uuid.New(), mallory, "m", "x"))
	got := f.sendDuring(t, other, d, `
		UPDATE members SET left_at = NULL, left_seq = NULL, left_epoch = NULL WHERE convo_id = $1 AND did = $2`)
	if got.err != nil || got.Replayed {
		t.Errorf("%+v", got)
	}
	f.wantUsed(t, 2, d, other)
}

// A sender leaves between the two statements, under the convo's lock. A retry of a stored message,
// with a token of its own, gets the first answer.
func TestLeftBetweenStatements(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1))
	token := f.mint(t)
	stored := f.draft(f.convos[0], bob, "k", "x")
	first := f.append(t, with(token(), stored))[0]
	if first.Err != nil {
		t.Fatal(first.Err)
	}
	other := with(token(), f.draft(uuid.New(), mallory, "m", "x"))
	got := f.sendDuring(t, other, with(token(), stored), `
		WITH c AS (SELECT id FROM convos WHERE id = $1 FOR NO KEY UPDATE)
		UPDATE members m SET left_at = now(), left_seq = 0, left_epoch = 5 FROM c WHERE m.convo_id = $1 AND m.did = $2`)
	if got.err != nil || !got.Replayed || got.ID != first.ID {
		t.Errorf("%+v", got)
	}
}

// sendDuring sends other and d in one batch. The transaction waits in its first statement, for the
// token of other, while change commits. It returns the outcome of d.
func (f *fixture) sendDuring(t *testing.T, other, d messages.Draft, change string) outcome {
	t.Helper()
	held, resume := f.pause(t, f.convos[1])
	release := f.lockToken(t, other)
	tx, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), change, d.ConvoID, d.Sender); err != nil {
		t.Fatal(err)
	}
	o, w := f.later(t.Context(), other), f.later(t.Context(), d)
	f.queued(t, 2)
	resume()
	<-held
	f.waitsForLock(t)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	release()
	<-o
	return <-w
}

// lockToken has another transaction use up the token of d, until release rolls it back.
func (f *fixture) lockToken(t *testing.T, d messages.Draft) (release func()) {
	t.Helper()
	return f.lock(t, `INSERT INTO used_tokens (token, expires_at) VALUES ($1, $2)`, uuid.UUID(d.Token.ID()), d.Token.Expires())
}

// waitsForLock waits until a session waits for a lock.
func (f *fixture) waitsForLock(t *testing.T) {
	t.Helper()
	eventually(t, func() bool {
		return f.count(t, `
			SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`) == 1
	})
}

// A batch that has committed is not tried again: its messages would be found, and their tokens
// used.
func TestNoTryAfterCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	other := with(token(), f.draft(uuid.New(), mallory, "m", "x"))
	a := with(token(), f.draft(f.convos[1], alice, "a", "x"))
	c := f.draft(f.convos[0], carol, "k", "x")
	release := f.lockToken(t, other)
	done := make(chan []messages.Result, 1)
	go func() { done <- f.Write(t.Context(), other, a, c) }()
	f.waitsForLock(t)
	if _, err := f.db.Exec(t.Context(), `
		UPDATE members SET left_at = NULL, left_seq = NULL, left_epoch = NULL WHERE convo_id = $1 AND did = $2`, c.ConvoID, carol); err != nil {
		t.Fatal(err)
	}
	release()
	if got := <-done; got[1].Err != nil || got[1].Replayed || got[2].Err != nil {
		t.Errorf("%+v", got)
	}
}

// Two requests with one key and different content share a transaction, whose COMMIT is lost and has
// not happened: the second one does not conflict with a message that does not exist.
func TestConflictWithLostMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	if err := f.faults.Arm(failpoint.BeforeCommit, nsid.SendMessage, failpoint.Error); err != nil {
		t.Fatal(err)
	}
	got := f.Write(t.Context(), f.draft(f.convos[0], alice, "k", "one"), f.draft(f.convos[0], alice, "k", "two"))
	for i, r := range got {
		if !errors.Is(r.Err, idem.ErrUnknownOutcome) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if n := f.count(t, `SELECT count(*) FROM messages`); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// Rounds of the expirer that are cut short go on where the one before ended.
func TestExpirerGoesOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	var last uuid.UUID
	for i := range 2*messages.ExpireConvos + 1 {
		age := time.Minute
		if i == 2*messages.ExpireConvos {
			age = 48 * time.Hour
		}
		last = uuid.Must(uuid.NewV7())
		if _, err := f.db.Exec(t.Context(), `
			WITH c AS (
				INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at)
				VALUES ($1, $2, 'did:plc:alice', 1, 5, 1, now()) RETURNING id
			), m AS (
				INSERT INTO members (convo_id, did, role, joined_at, joined_seq) SELECT id, 'did:plc:alice', 'creator', now(), 0 FROM c
			)
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT id, 1, 1, 'did:plc:alice', 5, $4, 'k', 'h', date_trunc('milliseconds', now() - $3::interval) FROM c`,
			last, last[:], age, mlstest.Message(last[:], 5, "x")); err != nil {
			t.Fatal(err)
		}
	}
	e := messages.NewExpirer(f.db, 24*time.Hour, func(int64) {})
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		rests := 0
		e.Pace(func() {
			if rests++; rests == 2 { // a third of the convos
				cancel()
			}
		})
		if _, err := e.RunOnce(ctx); err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		cancel()
	}
	if n := f.count(t, `SELECT count(*) FROM messages WHERE convo_id = $1`, last); n != 0 {
		t.Error("the last convo was not reached in 5 rounds")
	}
}
