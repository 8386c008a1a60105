package messages_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/mlstest"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/messages"
	"mlsd/mls"
)

const (
	retention = 24 * time.Hour
	older     = 25 * time.Hour
)

// sweeper returns a sweeper that does not rest, and the number of messages that each of its
// transactions deleted.
func (f *fixture) sweeper() (e *messages.Sweeper, deleted *[]int64) {
	deleted = new([]int64)
	e = messages.NewSweeper(f.db, retention, func(n int64) { *deleted = append(*deleted, n) }, nil)
	return e.Restless(), deleted
}

// commit appends the commit that creates epoch.
func (f *fixture) commit(t *testing.T, convo uuid.UUID, epoch int64) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), f.db, func(tx pgx.Tx) error {
		_, _, err := messages.AppendCommit(t.Context(), tx, messages.CommitEntry{
			ConvoID: convo, Sender: alice, Key: fmt.Sprint("submitCommit:", epoch), Epoch: epoch,
			Body: mlstest.Commit(convo[:], epoch-1, "c"),
		})
		if err == nil {
			_, err = tx.Exec(t.Context(), `UPDATE convos SET epoch = $2 WHERE id = $1`, convo, epoch)
		}
		if err == nil { // package invariants expects the record of a commit
			_, err = tx.Exec(t.Context(), `
				INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
					expires_at)
				SELECT sender_did, 'blue.catbird.mls.submitCommit', convo_id, epoch, request_hash, '{}', '{}', now(), now() +
					interval '1 day'
				FROM messages WHERE convo_id = $1 AND kind = 3 AND epoch = $2`, convo, epoch)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// seqs returns the seqs of the messages that a reader gets after a seq.
func (f *fixture) seqs(t *testing.T, convo uuid.UUID, after int64) []int64 {
	t.Helper()
	seqs, _, err := readPage(t, f.db, messages.Page{ConvoID: convo, After: after, Entries: messages.Everything})
	if err != nil {
		t.Fatal(err)
	}
	return seqs
}

// TestExpiry: old messages are deleted. Young messages, proposals and commits stay. Cursors, keys
// and seqs work as before.
func TestExpiry(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	convo := f.convos[0]
	first := f.append(t, f.draft(convo, alice, "first", "x"))[0]
	proposal := f.draft(convo, bob, "proposal", "p")
	proposal.Kind, proposal.Body = mls.ContentTypeProposal, mlstest.Proposal(convo[:], f.epoch, "p")
	f.append(t, proposal, f.draft(convo, bob, "third", "x"))
	f.commit(t, convo, f.epoch+1)
	f.epoch++
	pgtest.Age(t, f.db, "messages", older)
	young := f.append(t, f.draft(convo, alice, "young", "x"))[0]
	e, deleted := f.sweeper()
	if n, err := e.RunOnce(t.Context()); n != 2 || err != nil || !slices.Equal(*deleted, []int64{2}) {
		t.Fatalf("%d messages, %v, %v", n, *deleted, err)
	}
	if n, err := e.RunOnce(t.Context()); n != 0 || err != nil {
		t.Fatalf("again: %d messages, %v", n, err)
	}
	if got := f.seqs(t, convo, 0); !slices.Equal(got, []int64{2, 4, 5}) {
		t.Errorf("the log has %v", got)
	}
	if got := f.seqs(t, convo, 1); !slices.Equal(got, []int64{2, 4, 5}) { // sinceSeq of a message that is gone
		t.Errorf("behind 1 the log has %v", got)
	}
	window := messages.Window{ConvoID: convo, Last: young.Seq}
	behind := func(id uuid.UUID) ([]int64, error) {
		seqs, _, err := readPage(t, f.db, messages.Page{ConvoID: convo, Behind: &id, Entries: messages.Everything})
		return seqs, err
	}
	if got, err := behind(first.ID); !slices.Equal(got, []int64{2, 4, 5}) || err != nil {
		t.Errorf("a cursor that has expired: %v, %v", got, err)
	}
	forged, unknown := first.ID, messages.IDOf(convo, 6, time.Now())
	forged[7] ^= 1
	for _, id := range []uuid.UUID{forged, unknown, messages.IDOf(f.convos[1], 1, first.At), uuid.New()} {
		if _, err := behind(id); !errors.Is(err, messages.ErrInvalidCursor) {
			t.Errorf("cursor %s: %v", id, err)
		}
	}
	commits := 0
	err := messages.Commits(t.Context(), f.db, window, f.epoch, f.epoch, 10, 1<<20,
		func(*messages.Message) bool { commits++; return true })
	if err != nil || commits != 1 {
		t.Errorf("%d commits, %v", commits, err)
	}
	got := f.append(t, f.draft(convo, alice, "young", "x"), f.draft(convo, alice, "first", "x"))
	if !got[0].Replayed || got[0].ID != young.ID {
		t.Errorf("a young message again: %+v", got[0])
	}
	if got[1].Err != nil || got[1].Replayed || got[1].Seq != 6 {
		t.Errorf("a key whose message has expired: %+v", got[1])
	}
}

// TestExpiryOfAllThereIs: an empty log goes on with the next seq.
func TestExpiryOfAllThereIs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	last := f.append(t, f.draft(f.convos[0], alice, "a", "x"), f.draft(f.convos[0], alice, "b", "x"))[1]
	pgtest.Age(t, f.db, "messages", older)
	e, _ := f.sweeper()
	if n, err := e.RunOnce(t.Context()); n != 2 || err != nil {
		t.Fatalf("%d messages, %v", n, err)
	}
	got, _, err := readPage(t, f.db, messages.Page{ConvoID: f.convos[0], Behind: &last.ID, Entries: messages.Everything})
	if len(got) != 0 || err != nil {
		t.Errorf("behind the last message: %v, %v", got, err)
	}
	if got := f.append(t, f.draft(f.convos[0], alice, "c", "x"))[0]; got.Err != nil || got.Seq != 3 {
		t.Errorf("the next message: %+v", got)
	}
	if got := f.seqs(t, f.convos[0], 0); !slices.Equal(got, []int64{3}) {
		t.Errorf("the log has %v", got)
	}
}

// TestExpiryInOrder: if the clock was set back, expiry leaves no gap in the log.
func TestExpiryInOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	for i := range 4 {
		f.append(t, f.draft(f.convos[0], alice, fmt.Sprint(i), "x"))
	}
	if _, err := f.db.Exec(t.Context(), `UPDATE messages SET created_at = created_at - $1::interval WHERE seq <> 2`,
		older); err != nil {
		t.Fatal(err)
	}
	e, _ := f.sweeper()
	if n, err := e.RunOnce(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d messages, %v", n, err)
	}
	if got := f.seqs(t, f.convos[0], 0); !slices.Equal(got, []int64{2, 3, 4}) {
		t.Errorf("the log has %v", got)
	}
}

// TestExpiryInBatches: a transaction is bounded, whether many convos have a few old messages or a
// few convos have many.
func TestExpiryInBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	var drafts []messages.Draft
	for i := range 1200 { // one convo's
		drafts = append(drafts, f.draft(f.convos[0], alice, fmt.Sprint(i), "x"))
	}
	for i := range 600 { // more convos than are looked at in one go
		convo := uuid.Must(uuid.NewV7())
		f.addConvo(t, convo)
		for j := range 1 + 9*(i%2) {
			drafts = append(drafts, f.draft(convo, alice, fmt.Sprint(j), "x"))
		}
	}
	for batch := range slices.Chunk(drafts, 400) {
		f.append(t, batch...)
	}
	pgtest.Age(t, f.db, "messages", older)
	e, deleted := f.sweeper()
	n, err := e.RunOnce(t.Context())
	if err != nil || n != int64(len(drafts)) {
		t.Fatalf("%d of %d messages, %v", n, len(drafts), err)
	}
	if largest := slices.Max(*deleted); largest > messages.ExpireEntries {
		t.Errorf("%d in one transaction", largest)
	}
	if len(*deleted) > 20 {
		t.Errorf("%d transactions: %v", len(*deleted), *deleted)
	}
}

// TestExpiryHoldsNobodyUp: expiry does not wait for a locked convo, and does not delay senders.
func TestExpiryHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	f.append(t, f.draft(f.convos[0], alice, "old", "x"))
	pgtest.Age(t, f.db, "messages", older)
	holder, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `SELECT FROM convos FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	e, _ := f.sweeper()
	if n, err := e.RunOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("%d messages, %v", n, err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	const senders, each = 4, 150
	e.InADay()
	done := make(chan struct{})
	var expiring, sending sync.WaitGroup
	var expired int64
	expiring.Go(func() {
		for {
			n, err := e.RunOnce(context.WithoutCancel(t.Context()))
			if err != nil {
				t.Error(err)
			}
			expired += n
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for s := range senders {
		sending.Go(func() {
			for i := range each {
				_, err := f.Send(t.Context(), f.draft(f.convos[i%2], alice, fmt.Sprint(s, i), "x"))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	sending.Wait()
	close(done)
	expiring.Wait()
	n, err := e.RunOnce(t.Context())
	if expired+n != senders*each || err != nil {
		t.Errorf("%d of %d expired, %v", expired+n, senders*each, err)
	}
}

// TestOneExpires: one node expires at a time.
func TestOneExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	f.append(t, f.draft(f.convos[0], alice, "old", "x"))
	pgtest.Age(t, f.db, "messages", older)
	other, err := f.db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	e, _ := f.sweeper()
	for _, c := range []struct {
		sql  string
		want int64
	}{{`SELECT pg_advisory_lock($1, $2)`, 0}, {`SELECT pg_advisory_unlock($1, $2)`, 1}} {
		if _, err := other.Exec(t.Context(), c.sql, pgpool.NodeLockSpace, pgpool.LockExpiry); err != nil {
			t.Fatal(err)
		}
		if n, err := e.RunOnce(t.Context()); n != c.want || err != nil {
			t.Errorf("%s: %d messages, %v", c.sql, n, err)
		}
	}
}
