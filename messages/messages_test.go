package messages_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/idem"
	"mlsd/idem/idemtest"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/mlstest"
	"mlsd/internal/nsid"
	"mlsd/internal/pgtest"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/operator/invariants"
)

// fixture is a log with two convos, in each of which alice and bob are members and carol was one.
type fixture struct {
	*messages.Log
	db     *pgxpool.Pool
	faults *failpoint.Set
	convos [2]uuid.UUID
	epoch  int64
}

const (
	alice   syntax.DID = "did:plc:alice"
	bob     syntax.DID = "did:plc:bob"
	carol   syntax.DID = "did:plc:carol" // has left
	mallory syntax.DID = "did:plc:mallory"
)

type uncounted = idemtest.Uncounted

func newFixture(t testing.TB, window int64) *fixture {
	t.Helper()
	f := &fixture{db: pgtest.Database(t, pgtest.MaxConns(20)), faults: failpoint.New(), epoch: 5}
	f.Log = messages.NewLog(f.db, window, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(2),
		f.inStream())
	for i := range f.convos {
		f.convos[i] = uuid.Must(uuid.NewV7())
		f.addConvo(t, f.convos[i])
	}
	t.Cleanup(func() {
		violations, err := invariants.Check(context.Background(), f.db)
		if err != nil || len(violations) > 0 {
			t.Errorf("violated: %q, %v", violations, err)
		}
	})
	return f
}

// inStream lets messages that are alone be appended without judge.
func (f *fixture) inStream() messages.Option {
	log := slog.New(slog.DiscardHandler)
	return messages.In(events.Stream{
		Hub:       events.NewHub(events.HubConfig{DB: f.db, Log: log, Presence: events.NewPresence(f.db, log)}),
		Sequencer: events.NewSequencer(events.SequencerConfig{DB: f.db, Log: log}),
	})
}

// onReserved lets a log write batches over connections that wait for a lock as briefly as those of
// pgpool.OpenReserved.
func (f *fixture) onReserved(t testing.TB) messages.Option {
	t.Helper()
	cfg := f.db.Config()
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "250"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return messages.OnReserved(pool)
}

func (f *fixture) addConvo(t testing.TB, id uuid.UUID) {
	t.Helper()
	_, err := f.db.Exec(t.Context(), `
		INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2, $3, 1, $4, now())`,
		id, id[:], alice, f.epoch)
	if err == nil {
		_, err = f.db.Exec(t.Context(), `
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq, left_at, left_seq, left_epoch) VALUES
			($1, 'did:plc:alice', 'creator', now(), 0, NULL, NULL, NULL),
			($1, 'did:plc:bob', 'member', now(), 0, NULL, NULL, NULL),
			($1, 'did:plc:carol', 'member', now(), 0, now(), 0, 5)`, id)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// draft is what sender sends to a convo under key. body decides the content.
func (f *fixture) draft(convo uuid.UUID, sender syntax.DID, key, body string) messages.Draft {
	return f.draftAt(convo, sender, key, body, f.epoch)
}

func (f *fixture) draftAt(convo uuid.UUID, sender syntax.DID, key, body string, epoch int64) messages.Draft {
	return messages.Draft{
		ConvoID: convo, GroupID: convo[:], Sender: sender, Key: key, Kind: mls.ContentTypeApplication, Epoch: epoch,
		Body: mlstest.Message(convo[:], epoch, body),
		Hash: idem.Content{{Name: "ciphertext", JSON: fmt.Appendf(nil, "%q", body)},
			{Name: "epoch", JSON: fmt.Appendf(nil, "%d", epoch)}}.Hash(),
	}
}

func (f *fixture) append(t *testing.T, drafts ...messages.Draft) []messages.Result {
	t.Helper()
	results, err := f.Append(t.Context(), drafts)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// TestBatchIsJudgedRowByRow: a bad draft fails no other draft, and each draft gets its own result.
func TestBatchIsJudgedRowByRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	one, two := f.convos[0], f.convos[1]
	recorded := f.append(t, f.draft(one, alice, "recorded", "recorded"))[0]
	wrongGroup := f.draft(one, alice, "group", "x")
	wrongGroup.GroupID = two[:]
	got := f.append(t,
		f.draft(two, alice, "a", "a"),                      // 0
		f.draft(one, alice, "recorded", "recorded"),        // 1 replay
		f.draft(one, alice, "recorded", "other"),           // 2 conflict
		f.draft(uuid.New(), alice, "b", "b"),               // 3 no such convo
		f.draft(one, mallory, "c", "c"),                    // 4 outsider
		f.draft(one, carol, "d", "d"),                      // 5 has left
		wrongGroup,                                         // 6
		f.draftAt(one, alice, "e", "e", 4),                 // 7 stale
		f.draftAt(one, alice, "f", "f", 6),                 // 8 ahead
		f.draft(one, bob, "recorded", "bob's own"),         // 9 another's key is another key
		f.draft(two, alice, "recorded", "another convo's"), // 10
		f.draft(one, alice, "g", "g"),                      // 11
		f.draft(one, alice, "g", "g"),                      // 12 repeats 11
		f.draft(one, alice, "g", "not g"),                  // 13 conflicts with 11
		f.draftAt(one, alice, "h", "h", 4),                 // 14 stale
		f.draft(one, alice, "h", "h"),                      // 15 the key of 14, in the right epoch
	)
	type want struct {
		seq      int64
		replayed bool
		err      error
	}
	stale, ahead := &messages.EpochMismatchError{Epoch: 4, Current: 5}, &messages.EpochMismatchError{Epoch: 6, Current: 5}
	wants := []want{
		{1, false, nil}, {1, true, nil}, {err: &idem.ConflictError{}}, {err: messages.ErrConvoNotFound},
		{err: messages.ErrConvoNotFound},
		{err: messages.ErrNotMember}, {err: messages.ErrWrongGroup}, {err: stale}, {err: ahead}, {2, false, nil},
		{2, false, nil},
		{3, false, nil}, {3, true, nil}, {err: &idem.ConflictError{}}, {err: stale}, {4, false, nil},
	}
	for i, w := range wants {
		g := got[i]
		var conflict *idem.ConflictError
		var mismatch *messages.EpochMismatchError
		switch {
		case errors.As(w.err, &conflict):
			if !errors.As(g.Err, &conflict) || len(conflict.Fields) != 1 || conflict.Fields[0] != "ciphertext" {
				t.Errorf("%d: %v, want a conflict in ciphertext", i, g.Err)
			}
		case errors.As(w.err, &mismatch):
			if !errors.As(g.Err, &mismatch) || *mismatch != *w.err.(*messages.EpochMismatchError) {
				t.Errorf("%d: %v, want %v", i, g.Err, w.err)
			}
		case !errors.Is(g.Err, w.err) || g.Seq != w.seq || g.Replayed != w.replayed:
			t.Errorf("%d: seq %d, replayed %v, %v; want %+v", i, g.Seq, g.Replayed, g.Err, w)
		}
	}
	if got[1].Receipt.ID != recorded.ID || !got[1].At.Equal(recorded.At) || got[12].ID != got[11].ID {
		t.Error("a replay is not the first answer")
	}
}

func TestEpochWindow(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 2)
	for epoch, ok := range map[int64]bool{2: false, 3: true, 4: true, 5: true, 6: false} {
		got := f.append(t, f.draftAt(f.convos[0], alice, fmt.Sprint(epoch), "x", epoch))[0]
		if (got.Err == nil) != ok {
			t.Errorf("epoch %d: %v", epoch, got.Err)
		}
	}
}

// TestConcurrentBatches: batches over the same convos in opposite orders neither deadlock nor leave
// a gap. Every key is in the log once, however often it was sent.
func TestConcurrentBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	const writers, keys = 12, 40
	receipts := make([]map[string]messages.Receipt, writers)
	var wg sync.WaitGroup
	for w := range writers {
		receipts[w] = map[string]messages.Receipt{}
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			order := rng.Perm(keys)
			for len(order) > 0 {
				n := min(len(order), 1+rng.IntN(8))
				var batch []messages.Draft
				for _, k := range order[:n] {
					batch = append(batch, f.draft(f.convos[k%2], alice, fmt.Sprint(k), fmt.Sprint("body ", k)))
				}
				results, err := f.Append(t.Context(), batch)
				if err != nil {
					t.Error(err)
					return
				}
				for i, k := range order[:n] {
					if results[i].Err != nil {
						t.Errorf("key %d: %v", k, results[i].Err)
					}
					receipt := results[i].Receipt
					receipt.Replayed = false
					receipts[w][fmt.Sprint(k)] = receipt
				}
				order = order[n:]
			}
		})
	}
	wg.Wait()
	for w := 1; w < writers; w++ {
		for k, r := range receipts[w] {
			if want := receipts[0][k]; r.ID != want.ID || r.Seq != want.Seq || !r.At.Equal(want.At) {
				t.Errorf("key %s: writer %d got %+v, writer 0 got %+v", k, w, r, want)
			}
		}
	}
	var n int
	if err := f.db.QueryRow(t.Context(), `SELECT count(*) FROM messages`).Scan(&n); err != nil || n != keys {
		t.Fatalf("%d rows for %d keys, %v", n, keys, err)
	}
}

// TestLostCommit: the outcome of a COMMIT whose answer was lost is looked up.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	failpointtest.Arm(t, f.faults, failpoint.AfterCommit, nsid.SendMessage, failpoint.Error)
	d := f.draft(f.convos[0], alice, "k", "x")
	first := f.append(t, d)[0]
	if first.Err != nil || first.Replayed || first.Seq != 1 {
		t.Fatalf("%+v", first)
	}
	failpointtest.Arm(t, f.faults, failpoint.BeforeCommit, nsid.SendMessage, failpoint.Error)
	if _, err := f.Append(t.Context(), []messages.Draft{f.draft(f.convos[0], alice, "l", "y")}); !errors.Is(err,
		failpoint.ErrInjected) {
		t.Fatalf("got %v", err)
	}
	got := f.append(t, d, f.draft(f.convos[0], alice, "l", "y"))
	if !got[0].Replayed || got[0].ID != first.ID || got[1].Replayed || got[1].Seq != 2 {
		t.Fatalf("retries: %+v", got)
	}
}

// killAtCommit starts a write, and ends its session just before COMMIT. With resume, the write goes
// on.
func (f *fixture) killAtCommit(t *testing.T, write func()) (resume func()) {
	t.Helper()
	failpointtest.Arm(t, f.faults, failpoint.BeforeCommit, nsid.SendMessage, failpoint.Pause)
	reached := f.faults.Reached(failpoint.BeforeCommit, nsid.SendMessage)
	go write()
	<-reached
	_, err := f.db.Exec(t.Context(), `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'`)
	if err != nil {
		t.Fatal(err)
	}
	return func() { f.faults.Resume(failpoint.BeforeCommit, nsid.SendMessage) }
}

// TestUnknownOutcome: the backend is gone before COMMIT, and nothing was written.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	failed := make(chan error, 1)
	d := f.draft(f.convos[0], alice, "k", "x")
	resume := f.killAtCommit(t, func() {
		_, err := f.Append(t.Context(), []messages.Draft{d})
		failed <- err
	})
	resume()
	if err := <-failed; !errors.Is(err, idem.ErrUnknownOutcome) {
		t.Fatalf("got %v", err)
	}
	if got := f.append(t, d)[0]; got.Replayed || got.Seq != 1 {
		t.Fatalf("retry: %+v", got)
	}
}

// TestLostCommitIsNotAnothers: a message whose COMMIT did not happen does not count as appended,
// even if another request has its key and its seq by the time of the look-up.
func TestLostCommitIsNotAnothers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	failed := make(chan error, 1)
	resume := f.killAtCommit(t, func() {
		_, err := f.Append(t.Context(), []messages.Draft{f.draft(f.convos[0], alice, "k", "first")})
		failed <- err
	})
	if got := f.append(t, f.draft(f.convos[0], alice, "k", "second"))[0]; got.Err != nil || got.Seq != 1 {
		t.Fatalf("the other request: %+v", got)
	}
	resume()
	if err := <-failed; !errors.Is(err, idem.ErrUnknownOutcome) {
		t.Fatalf("the lost one: %v", err)
	}
}

// TestOutsidersDoNotWait: a caller that is not a member does not wait for a convo, because the wait
// would show that the convo exists. It does not delay the convo either.
func TestOutsidersDoNotWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	holder, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := holder.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := holder.Exec(t.Context(), `SELECT FROM convos FOR NO KEY UPDATE`); err != nil {
		t.Fatal(err)
	}
	// Waiting would end in a lock timeout, which fails the batch.
	got := f.append(t, f.draft(f.convos[0], mallory, "k", "x"), f.draft(f.convos[0], carol, "k", "x"),
		f.draft(uuid.New(), mallory, "k", "x"))
	for i, want := range []error{messages.ErrConvoNotFound, messages.ErrNotMember, messages.ErrConvoNotFound} {
		if !errors.Is(got[i].Err, want) {
			t.Errorf("%d: %v, want %v", i, got[i].Err, want)
		}
	}
}
