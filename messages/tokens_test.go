package messages_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/idem"
	"mlsd/internal/await"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/nsid"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/messages"
)

// mint returns a function that makes tokens. Each is the token of another request.
func (f *fixture) mint(t *testing.T) func() *serviceauth.VerifiedToken { return f.mintAt(t, time.Now) }

// mintAt is mint with another clock.
func (f *fixture) mintAt(t *testing.T, now func() time.Time) func() *serviceauth.VerifiedToken {
	t.Helper()
	const service, nsid = "did:web:mls.example.com", syntax.NSID(nsid.SendMessage)
	sender := authtest.NewIdentity(t)
	validator, err := serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(service), Directory: authtest.NewDirectory(t, sender),
		Replays: serviceauth.NewUsedTokens(f.db), Now: now,
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() *serviceauth.VerifiedToken {
		token, err := validator.Validate(t.Context(), "", sender.Authorization(t, service, nsid.String(), now()), nsid,
			true, nil)
		if err != nil {
			t.Fatal(err)
		}
		return &token
	}
}

// with returns d with the token of its request.
func with(token *serviceauth.VerifiedToken, d messages.Draft) messages.Draft {
	d.Token = token
	return d
}

// wantUsed fails the test unless n tokens are used up, and those of drafts are among them.
func (f *fixture) wantUsed(t *testing.T, n int, drafts ...messages.Draft) {
	t.Helper()
	if got := f.count(t, `SELECT count(*) FROM used_tokens`); got != n {
		t.Errorf("%d tokens are used up, want %d", got, n)
	}
	for i, d := range drafts {
		if got := f.count(t, `SELECT count(*) FROM used_tokens WHERE token = $1 AND expires_at = $2`, uuid.UUID(d.Token.ID()),
			d.Token.Expires()); got != 1 {
			t.Errorf("the token of draft %d is not used up", i)
		}
	}
}

// A token is good for one draft. Messages, refusals and repetitions of requests use up their
// tokens. A draft with a used token is refused before anything else is judged. Of two drafts with
// one token at most one is judged.
func TestTokens(t *testing.T) {
	t.Parallel()
	for _, batch := range []bool{true, false} {
		t.Run(fmt.Sprintf("batch=%t", batch), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 0)
			token := f.mint(t)
			one, two := f.convos[0], f.convos[1]
			used, twice := token(), token()
			recorded := with(used, f.draft(one, alice, "recorded", "recorded"))
			if r := f.append(t, recorded)[0]; r.Err != nil {
				t.Fatal(r.Err)
			}
			drafts := []messages.Draft{
				with(token(), f.draft(one, alice, "a", "a")),                   // 0
				with(used, f.draft(one, alice, "b", "b")),                      // 1 another message with the token of the first
				with(used, recorded),                                           // 2 the first request itself again
				with(token(), f.draft(one, alice, "recorded", "recorded")),     // 3 a retry, with a token of its own
				with(token(), f.draft(one, alice, "recorded", "another body")), // 4 a conflict
				with(token(), f.draft(one, mallory, "c", "c")),                 // 5 no member
				with(token(), f.draftAt(two, bob, "d", "d", 4)),                // 6 of another epoch
				with(twice, f.draft(two, bob, "e", "e")),                       // 7
				with(twice, f.draft(two, bob, "f", "f")),                       // 8 the token of 7
				f.draft(two, bob, "g", "g"),                                    // 9 has none
				with(used, f.draft(uuid.New(), mallory, "h", "h")),             // 10
			}
			results := make([]messages.Result, 0, len(drafts))
			if batch {
				results = f.append(t, drafts...)
			} else {
				for _, d := range drafts {
					results = append(results, f.append(t, d)...)
				}
			}
			var (
				conflict *idem.ConflictError
				mismatch *messages.EpochMismatchError
			)
			for i, r := range results {
				ok := r.Err == nil && r.Replayed == (i == 3)
				switch i {
				case 1, 2, 8, 10:
					ok = errors.Is(r.Err, serviceauth.ErrReplayed)
				case 4:
					ok = errors.As(r.Err, &conflict)
				case 5:
					ok = errors.Is(r.Err, messages.ErrConvoNotFound)
				case 6:
					ok = errors.As(r.Err, &mismatch)
				}
				if !ok {
					t.Errorf("%d: %+v", i, r)
				}
			}
			if n := f.count(t, `SELECT count(*) FROM messages`); n != 4 {
				t.Errorf("%d messages", n)
			}
			f.wantUsed(t, 7, slices.DeleteFunc(slices.Clone(drafts), func(d messages.Draft) bool { return d.Token == nil })...)
		})
	}
}

// Equal requests, each with its own token as a client's retries have, share a batch with other
// requests under the same key. One of the equal requests is the first, and all get its answer.
func TestRepetitionsWithTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	var drafts []messages.Draft
	for i := range 40 {
		drafts = append(drafts, with(token(), f.draft(f.convos[0], alice, "k", fmt.Sprint(i%4 == 3))))
	}
	for range 40 {
		drafts = append(drafts, with(token(), f.draftAt(f.convos[0], bob, "k", "late", 4)))
	}
	results := f.Write(t.Context(), drafts...)
	for i, r := range results {
		var (
			conflict *idem.ConflictError
			mismatch *messages.EpochMismatchError
		)
		switch {
		case i >= 40:
			if !errors.As(r.Err, &mismatch) {
				t.Errorf("%d: %+v", i, r)
			}
		case i%4 == 3:
			if !errors.As(r.Err, &conflict) {
				t.Errorf("%d: %+v", i, r)
			}
		case r.Err != nil || r.Seq != 1 || r.Replayed == (i == 0):
			t.Errorf("%d: %+v", i, r)
		}
	}
	f.wantUsed(t, 80, drafts...)
}

// Of two equal requests the first has a used token, so it is refused. The second has a fresh token
// and is appended.
func TestFirstRequestHasAUsedToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	stale := token()
	if err := stale.Use(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := f.draft(f.convos[0], alice, "k", "x")
	got := f.append(t, with(stale, d), with(token(), d), with(stale, d), with(token(), d))
	for i, r := range got {
		if i%2 == 0 && !errors.Is(r.Err, serviceauth.ErrReplayed) || i%2 == 1 &&
			(r.Err != nil || r.Seq != 1 || r.Replayed != (i == 3)) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	f.wantUsed(t, 3)

	// An equal draft without a token is not refused either.
	d = f.draft(f.convos[0], alice, "l", "y")
	if got := f.append(t, with(stale, d), d); !errors.Is(got[0].Err, serviceauth.ErrReplayed) || got[1].Err != nil ||
		got[1].Seq != 2 {
		t.Errorf("%+v", got)
	}
}

// A token that another transaction is using up delays the messages of its convo only, whether its
// draft is alone in the batch or not.
func TestTokenInFlight(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 0)
			f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1),
				f.inStream(),
				f.onReserved(t))
			token := f.mint(t)
			d := with(token(), f.draft(f.convos[0], alice, "k", "x"))
			paused, resume := f.pause(t, f.convos[1])
			release := f.lock(t, `INSERT INTO used_tokens (token, expires_at) VALUES ($1, $2)`, uuid.UUID(d.Token.ID()),
				d.Token.Expires())
			waiting := f.later(t.Context(), d)
			f.queued(t, 1)
			var neighbour <-chan outcome
			if n > 1 {
				neighbour = f.later(t.Context(), with(token(), f.draft(f.convos[1], bob, "with it", "x")))
				f.queued(t, n)
			}
			resume()
			<-paused
			if n > 1 {
				if got := <-neighbour; got.err != nil {
					t.Errorf("the neighbour: %v", got.err)
				}
			}
			if _, err := f.Send(t.Context(), with(token(), f.draft(f.convos[1], bob, "behind it", "x"))); err != nil {
				t.Errorf("a later message: %v", err)
			}
			release() // and it is not used up
			if got := <-waiting; got.err != nil {
				t.Errorf("%v", got.err)
			}
		})
	}
}

// Many requests under one key that are all refused take one transaction, and delay no other draft.
func TestManyRefusalsUnderOneKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	var drafts []messages.Draft
	for i := range 20 {
		drafts = append(drafts, with(token(), f.draftAt(f.convos[0], alice, "k", fmt.Sprint(i), 4)))
	}
	drafts = append(drafts, with(token(), f.draft(f.convos[0], alice, "another key", "x")))
	before := f.transactions(t)
	for i, r := range f.Write(t.Context(), drafts...) {
		var mismatch *messages.EpochMismatchError
		if i < 20 && !errors.As(r.Err, &mismatch) || i == 20 && r.Err != nil {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if n := f.transactions(t) - before; n != 1 {
		t.Errorf("%d transactions", n)
	}
	f.wantUsed(t, 21, drafts...)
}

// Another transaction uses a token up while that of its draft is about to: the draft is refused, and
// its neighbour in the batch is appended.
func TestTokenUsedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	d, neighbour := with(token(), f.draft(f.convos[0], alice, "k", "x")),
		with(token(), f.draft(f.convos[0], bob, "l", "y"))
	tx, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO used_tokens (token, expires_at) VALUES ($1, $2)`,
		uuid.UUID(d.Token.ID()), d.Token.Expires()); err != nil {
		t.Fatal(err)
	}
	done := make(chan []messages.Result, 1)
	go func() { done <- f.Write(t.Context(), d, neighbour) }()
	pgtest.AwaitLockWaits(t, f.db, 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-done; !errors.Is(got[0].Err, serviceauth.ErrReplayed) || got[1].Err != nil || got[1].Seq != 1 {
		t.Errorf("%+v", got)
	}
	f.wantUsed(t, 2, d, neighbour)
}

// transactions counts the transactions that have used up tokens or written messages.
func (f *fixture) transactions(t *testing.T) (n int) {
	t.Helper()
	return f.count(t, `SELECT count(*) FROM (SELECT xmin::text FROM used_tokens UNION SELECT xmin::text FROM messages) x`)
}

// Many messages at once on two nodes have one token: one of them is written.
func TestOneTokenAcrossNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token, nodes := f.mint(t), []*messages.Log{f.Log, f.node()}
	for round := range 5 {
		same := token()
		var passed atomic.Int32
		var wg sync.WaitGroup
		for i := range 20 {
			d := with(same, f.draft(f.convos[i/2%2], alice, fmt.Sprint(round, i), "x"))
			wg.Go(func() {
				switch _, err := nodes[i%2].Send(t.Context(), d); {
				case err == nil:
					passed.Add(1)
				case !errors.Is(err, serviceauth.ErrReplayed):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if passed.Load() != 1 {
			t.Errorf("%d passed, want 1", passed.Load())
		}
	}
	if n := f.count(t, `SELECT count(*) FROM messages`); n != 5 {
		t.Errorf("%d messages", n)
	}
}

// A message whose convo is busy is written later. Its token is used up then, and another message
// with that token is refused. If the convo's row is locked, the transaction that passes over it is
// committed. If the convo's row in push_convos is locked, that transaction is rolled back.
func TestTokenOfBusyConvo(t *testing.T) {
	t.Parallel()
	for name, hold := range busy {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, 0)
				f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1),
					f.inStream(),
					f.onReserved(t))
				token := f.mint(t)
				paused, resume := f.pause(t, f.convos[1])
				release := hold(f, t, f.convos[0])
				var drafts []messages.Draft
				var waiting []<-chan outcome
				for i := range n {
					drafts = append(drafts, with(token(), f.draft(f.convos[0], alice, fmt.Sprint(i), "x")))
					waiting = append(waiting, f.later(t.Context(), drafts[i]))
				}
				f.queued(t, n) // for one batch
				resume()
				<-paused
				await.Until(t, "the convo is busy", func() bool { return f.Busy(f.convos[0]) })
				release()
				for i, w := range waiting {
					if got := <-w; got.err != nil || got.Replayed {
						t.Errorf("%d: %+v", i, got)
					}
				}
				if _, err := f.Send(t.Context(), with(drafts[0].Token, f.draft(f.convos[1], alice, "again", "x"))); !errors.Is(err,
					serviceauth.ErrReplayed) {
					t.Errorf("with the token of another: %v", err)
				}
				f.wantUsed(t, n, drafts...)
			})
		}
	}
}

// A transaction that is rolled back uses no token: the same token is good for the next try. One
// that is committed uses it, even if the answer to the COMMIT is lost.
func TestTokenAndTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	d := with(token(), f.draft(f.convos[0], alice, "k", "x"))
	failpointtest.Arm(t, f.faults, failpoint.BeforeCommit, nsid.SendMessage, failpoint.Error)
	if _, err := f.Send(t.Context(), d); !errors.Is(err, failpoint.ErrInjected) {
		t.Fatalf("got %v", err)
	}
	f.wantUsed(t, 0)
	failpointtest.Arm(t, f.faults, failpoint.AfterCommit, nsid.SendMessage, failpoint.Error)
	if r, err := f.Send(t.Context(), d); err != nil || r.Replayed || r.Seq != 1 { // the outcome is looked up
		t.Fatalf("%+v, %v", r, err)
	}
	f.wantUsed(t, 1, d)
	if _, err := f.Send(t.Context(), d); !errors.Is(err, serviceauth.ErrReplayed) {
		t.Fatalf("got %v", err)
	}
}

// X3: a transaction that passes over a busy convo does not use up its message's token, so the
// message is written with that token later, even if the transaction's COMMIT was lost.
func TestTokenOfLostTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	release := f.lock(t, lockConvo, f.convos[0])
	failpointtest.Arm(t, f.faults, failpoint.AfterCommit, nsid.SendMessage, failpoint.Error)
	d := f.draft(f.convos[0], alice, "k", "x")
	sent := f.later(t.Context(), with(token(), d))
	await.Until(t, "the convo is busy", func() bool { return f.Busy(f.convos[0]) })
	release()
	if got := <-sent; got.err != nil || got.Replayed || got.Seq != 1 {
		t.Fatalf("%+v", got)
	}
	if r, err := f.Send(t.Context(), with(token(), d)); err != nil || !r.Replayed || r.Seq != 1 {
		t.Fatalf("a retry: %+v, %v", r, err)
	}
}
