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
	"mlsd/internal/failpoint"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/messages"
)

// mint returns a maker of tokens, each of a request of its own.
func (f *fixture) mint(t *testing.T) func() *serviceauth.Verified {
	t.Helper()
	const service, nsid = "did:web:mls.example.com", syntax.NSID(messages.NSID)
	sender := authtest.NewIdentity(t)
	validator, err := serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(service), Directory: authtest.NewDirectory(t, sender), Replays: serviceauth.NewUsedTokens(f.db),
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() *serviceauth.Verified {
		token, err := validator.Validate(t.Context(), sender.Authorization(t, service, nsid.String(), time.Now()), nsid, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		return &token
	}
}

// with returns d as a request with token sends it.
func with(token *serviceauth.Verified, d messages.Draft) messages.Draft {
	d.Token = token
	return d
}

// wantUsed fails the test unless so many tokens are used up, those of drafts among them.
func (f *fixture) wantUsed(t *testing.T, n int, drafts ...messages.Draft) {
	t.Helper()
	if got := f.count(t, `SELECT count(*) FROM used_tokens`); got != n {
		t.Errorf("%d tokens are used up, want %d", got, n)
	}
	for i, d := range drafts {
		if got := f.count(t, `SELECT count(*) FROM used_tokens WHERE token = $1 AND expires_at = $2`, uuid.UUID(d.Token.ID()), d.Token.Expires()); got != 1 {
			t.Errorf("the token of draft %d is not used up", i)
		}
	}
}

// A token has one effect, and each draft of a batch its own token: the messages, the refusals and the repetitions of requests use theirs up, a draft
// with a used one is not even looked at, and of two drafts with one token one at most is.
func TestTokens(t *testing.T) {
	t.Parallel()
	for _, batch := range []bool{true, false} {
		t.Run(fmt.Sprintf("batch=%t", batch), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 0)
			token := f.mint(t)
			one, two := f.convos[0], f.convos[1]
			spent, twice := token(), token()
			held := with(spent, f.draft(one, alice, "held", "held"))
			if r := f.append(t, held)[0]; r.Err != nil {
				t.Fatal(r.Err)
			}
			drafts := []messages.Draft{
				with(token(), f.draft(one, alice, "a", "a")), // 0
				with(spent, f.draft(one, alice, "b", "b")),   // 1 another message with the token of the first
				with(spent, held), // 2 the first request itself, come again
				with(token(), f.draft(one, alice, "held", "held")),     // 3 a retry, with a token of its own
				with(token(), f.draft(one, alice, "held", "not held")), // 4 a conflict
				with(token(), f.draft(one, mallory, "c", "c")),         // 5 no member
				with(token(), f.draftAt(two, bob, "d", "d", 4)),        // 6 of another epoch
				with(twice, f.draft(two, bob, "e", "e")),               // 7
				with(twice, f.draft(two, bob, "f", "f")),               // 8 the token of 7
				f.draft(two, bob, "g", "g"),                            // 9 has none
				with(spent, f.draft(uuid.New(), mallory, "h", "h")),    // 10
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

// The same request comes many times, each time with a token of its own, as a client's retries do, and in one batch with others of its
// key: one is the first, and all get its answer.
func TestTwinsWithTokens(t *testing.T) {
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
	// Those that repeat a refusal have no effect for which their tokens would have to be used up.
	f.wantUsed(t, 41, drafts[:41]...)
}

// The token of the request that came first was used before: its message is not written, and its twin's, whose token is fresh, is.
func TestFirstTwinIsStale(t *testing.T) {
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
		if i%2 == 0 && !errors.Is(r.Err, serviceauth.ErrReplayed) || i%2 == 1 && (r.Err != nil || r.Seq != 1 || r.Replayed != (i == 3)) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	f.wantUsed(t, 3)

	// Nor is one refused that has used up its own already, and comes back from where its convo was busy.
	d = f.draft(f.convos[0], alice, "l", "y")
	if got := f.append(t, with(stale, d), d); !errors.Is(got[0].Err, serviceauth.ErrReplayed) || got[1].Err != nil || got[1].Seq != 2 {
		t.Errorf("%+v", got)
	}
}

// A token that another transaction is using up holds up nobody but those of its convo: alone, and with a neighbour in the batch.
func TestTokenInFlight(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, 0)
			f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1))
			token := f.mint(t)
			d := with(token(), f.draft(f.convos[0], alice, "k", "x"))
			held, resume := f.pause(t, f.convos[1])
			release := f.lock(t, `INSERT INTO used_tokens (token, expires_at) VALUES ($1, $2)`, uuid.UUID(d.Token.ID()), d.Token.Expires())
			waiting := f.later(t.Context(), d)
			f.queued(t, 1)
			var neighbour <-chan outcome
			if n > 1 {
				neighbour = f.later(t.Context(), with(token(), f.draft(f.convos[1], bob, "with it", "x")))
				f.queued(t, n)
			}
			resume()
			<-held
			if n > 1 {
				if got := <-neighbour; got.err != nil {
					t.Errorf("the neighbour: %v", got.err)
				}
			}
			if _, err := f.Send(t.Context(), with(token(), f.draft(f.convos[1], bob, "behind it", "x"))); err != nil {
				t.Errorf("whoever comes later: %v", err)
			}
			release() // and it is not used up
			if got := <-waiting; got.err != nil {
				t.Errorf("%v", got.err)
			}
		})
	}
}

// Many requests under one key, each refused, take a bounded number of transactions: the rest is told to come again.
func TestPassesAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	var drafts []messages.Draft
	for i := range 20 {
		drafts = append(drafts, with(token(), f.draftAt(f.convos[0], alice, "k", fmt.Sprint(i), 4)))
	}
	drafts = append(drafts, with(token(), f.draft(f.convos[0], alice, "another key", "x")))
	judged := 0
	for i, r := range f.Write(t.Context(), drafts...) {
		var mismatch *messages.EpochMismatchError
		switch {
		case i == 20:
			if r.Err != nil {
				t.Errorf("the neighbour: %v", r.Err)
			}
		case errors.As(r.Err, &mismatch):
			judged++
		case !errors.Is(r.Err, messages.ErrBusy):
			t.Errorf("%d: %+v", i, r)
		}
	}
	if judged != 4 {
		t.Errorf("%d were judged", judged)
	}
	f.wantUsed(t, 5)
}

// One token on two nodes at once, with as many messages: one is written.
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

// A message whose convo is busy is written later, when it may have used its token up itself; another with the same token is refused all the
// same. With the convo's row, the transaction that passes over it is committed; with the push fan-out's, it comes to nothing.
func TestTokenOfBusyConvo(t *testing.T) {
	t.Parallel()
	for name, hold := range busy {
		for _, n := range []int{1, 3} {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, 0)
				f.Log = messages.NewLog(f.db, 0, uncounted{}, slog.New(slog.DiscardHandler), f.faults, messages.WithShards(1))
				token := f.mint(t)
				held, resume := f.pause(t, f.convos[1])
				release := hold(f, t, f.convos[0])
				var drafts []messages.Draft
				var waiting []<-chan outcome
				for i := range n {
					drafts = append(drafts, with(token(), f.draft(f.convos[0], alice, fmt.Sprint(i), "x")))
					waiting = append(waiting, f.later(t.Context(), drafts[i]))
				}
				f.queued(t, n) // for one batch
				resume()
				<-held
				eventually(t, func() bool { return f.Aside(f.convos[0]) })
				release()
				for i, w := range waiting {
					if got := <-w; got.err != nil || got.Replayed {
						t.Errorf("%d: %+v", i, got)
					}
				}
				if _, err := f.Send(t.Context(), with(drafts[0].Token, f.draft(f.convos[1], alice, "again", "x"))); !errors.Is(err, serviceauth.ErrReplayed) {
					t.Errorf("with the token of another: %v", err)
				}
				f.wantUsed(t, n, drafts...)
			})
		}
	}
}

// What is rolled back has used nothing up: the same token is good for the next try. What is committed has, though nobody heard of it.
func TestTokenAndTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	d := with(token(), f.draft(f.convos[0], alice, "k", "x"))
	if err := f.faults.Arm(failpoint.BeforeCommit, messages.NSID, failpoint.Error); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Send(t.Context(), d); !errors.Is(err, failpoint.ErrInjected) {
		t.Fatalf("got %v", err)
	}
	f.wantUsed(t, 0)
	if err := f.faults.Arm(failpoint.AfterCommit, messages.NSID, failpoint.Error); err != nil {
		t.Fatal(err)
	}
	if r, err := f.Send(t.Context(), d); err != nil || r.Replayed || r.Seq != 1 { // it is looked up
		t.Fatalf("%+v, %v", r, err)
	}
	f.wantUsed(t, 1, d)
	if _, err := f.Send(t.Context(), d); !errors.Is(err, serviceauth.ErrReplayed) {
		t.Fatalf("got %v", err)
	}
}

// Whether the transaction that passed over a busy convo's message was committed is not known: rather than that its token be good for another request,
// the message is refused, and comes again with a fresh one.
func TestTokenOfLostTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	release := f.lock(t, lockConvo, f.convos[0])
	if err := f.faults.Arm(failpoint.AfterCommit, messages.NSID, failpoint.Error); err != nil {
		t.Fatal(err)
	}
	d := f.draft(f.convos[0], alice, "k", "x")
	sent := f.later(t.Context(), with(token(), d))
	eventually(t, func() bool { return f.Aside(f.convos[0]) })
	release()
	if got := <-sent; !errors.Is(got.err, serviceauth.ErrReplayed) {
		t.Fatalf("%+v", got)
	}
	if r, err := f.Send(t.Context(), with(token(), d)); err != nil || r.Replayed || r.Seq != 1 {
		t.Fatalf("the retry: %+v, %v", r, err)
	}
}

// A poisoned draft takes nobody's token along: the halves of its batch find the tokens fresh.
func TestTokensOfPoisonedBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	var drafts []messages.Draft
	for i := range 9 {
		key := fmt.Sprint(i)
		if i == 5 {
			key = "zero\x00byte"
		}
		drafts = append(drafts, with(token(), f.draft(f.convos[0], alice, key, "x")))
	}
	for i, r := range f.Write(t.Context(), drafts...) {
		if (r.Err != nil) != (i == 5) || errors.Is(r.Err, serviceauth.ErrReplayed) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	f.wantUsed(t, 8, slices.Delete(slices.Clone(drafts), 5, 6)...)
}

// In every mode a token is good for one request.
func TestTokenInEveryMode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	token := f.mint(t)
	for _, mode := range []messages.Mode{messages.Together, messages.Alone, messages.Nowhere} {
		if err := f.SetMode(mode); err != nil {
			t.Fatal(err)
		}
		d := with(token(), f.draft(f.convos[0], alice, string(mode), "x"))
		if _, err := f.Send(t.Context(), d); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		d.Key += " again"
		if _, err := f.Send(t.Context(), d); !errors.Is(err, serviceauth.ErrReplayed) {
			t.Errorf("%s, again: %v", mode, err)
		}
	}
}
