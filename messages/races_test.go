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
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/mlstest"
	"mlsd/internal/nsid"
	"mlsd/internal/pgtest"
	"mlsd/messages"
)

// A transaction changes a convo between the snapshot of lockFreeConvos and its lock. The draft is judged
// by what that transaction left, and so is its token.
func TestChangedBetweenSnapshotAndLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1),
		f.inStream())
	// Reading the roster waits for an advisory lock. The statement has its snapshot by then.
	if _, err := f.db.Exec(t.Context(), `
		CREATE FUNCTION pause() RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(1);
			RETURN true;
		END $$;
		ALTER TABLE members RENAME TO members_rows;
		CREATE VIEW members AS SELECT * FROM members_rows WHERE pause()`); err != nil {
		t.Fatal(err)
	}
	release := f.lock(t, `SELECT pg_advisory_xact_lock(1)`)
	d := with(f.mint(t)(), f.draft(f.convos[0], alice, "k", "x"))
	got := f.later(t.Context(), d)
	pgtest.AwaitLockWaits(t, f.db, 1)
	if _, err := f.db.Exec(t.Context(), `UPDATE convos SET epoch = epoch + 1 WHERE id = $1`, d.ConvoID); err != nil {
		t.Fatal(err)
	}
	release()
	var mismatch *messages.EpochMismatchError
	if o := <-got; !errors.As(o.err, &mismatch) || mismatch.Current != d.Epoch+1 {
		t.Errorf("%+v", o)
	}
	f.wantUsed(t, 1, d)
}

// A sender joins after the transaction of a busy convo looked for convos to wait for, and another
// transaction holds the convo. The batch is tried again, and waits for it.
func TestJoinedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	a, c := f.draft(f.convos[1], alice, "a", "x"), f.draft(f.convos[0], carol, "k", "x") // carol is a former member
	release := f.lock(t, lockConvo, a.ConvoID)
	done := make(chan []messages.Result, 1)
	go func() { done <- f.Write(t.Context(), a, c) }()
	pgtest.AwaitLockWaits(t, f.db, 1)
	if _, err := f.db.Exec(t.Context(), `
		UPDATE members SET left_at = NULL, left_seq = NULL, left_epoch = NULL WHERE convo_id = $1 AND did = $2`, c.ConvoID,
		carol); err != nil {
		t.Fatal(err)
	}
	free := f.lock(t, lockConvo, c.ConvoID)
	release()
	// The first try waits for nothing more: what waits now is the second one.
	pgtest.AwaitLockWaits(t, f.db, 1)
	free()
	for i, r := range <-done {
		if r.Err != nil || r.Replayed {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

// A sender leaves while its retry of a stored message, with a token of its own, waits for the convo.
// The retry gets the first answer.
func TestLeftWhileWaiting(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1),
		f.inStream())
	token := f.mint(t)
	stored := f.draft(f.convos[0], bob, "k", "x")
	first := f.append(t, with(token(), stored))[0]
	if first.Err != nil {
		t.Fatal(first.Err)
	}
	tx, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `
		WITH c AS (UPDATE convos SET last_seq = last_seq WHERE id = $1 RETURNING id)
		UPDATE members m SET left_at = now(), left_seq = 1, left_epoch = 5 FROM c WHERE m.convo_id = c.id AND m.did = $2`,
		stored.ConvoID, bob); err != nil {
		t.Fatal(err)
	}
	got := f.later(t.Context(), with(token(), stored))
	pgtest.AwaitLockWaits(t, f.db, 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-got; got.err != nil || !got.Replayed || got.ID != first.ID {
		t.Errorf("%+v", got)
	}
}

// A message is appended on another node while a repetition waits for its convo. The repetition gets
// the first answer.
func TestAppendedWhileWaiting(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	paused, resume := f.pause(t, f.convos[0])
	got := make(chan []messages.Result, 1)
	go func() { got <- f.node().Write(t.Context(), f.draft(f.convos[0], alice, "paused", "paused")) }()
	pgtest.AwaitLockWaits(t, f.db, 1)
	resume()
	first := <-paused
	if first.err != nil {
		t.Fatal(first.err)
	}
	if r := (<-got)[0]; r.Err != nil || !r.Replayed || r.ID != first.ID {
		t.Errorf("%+v", r)
	}
}

// Two requests with one key and different content share a transaction, whose COMMIT is lost and has
// not happened: the second one does not conflict with a message that does not exist.
func TestConflictWithLostMessage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	failpointtest.Arm(t, f.faults, failpoint.BeforeCommit, nsid.SendMessage, failpoint.Error)
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

// Rounds of the sweeper that are cut short go on where the one before ended.
func TestSweeperGoesOn(t *testing.T) {
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
				INSERT INTO members (convo_id, did, role, joined_at, joined_seq) SELECT id, 'did:plc:alice', 'creator', now(), 0
					FROM c
			)
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT id, 1, 1, 'did:plc:alice', 5, $4, 'k', 'h', date_trunc('milliseconds', now() - $3::interval) FROM c`,
			last, last[:], age, mlstest.Message(last[:], 5, "x")); err != nil {
			t.Fatal(err)
		}
	}
	e := messages.NewSweeper(f.db, 24*time.Hour, func(int64) {}, nil)
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
