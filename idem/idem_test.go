package idem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/pgtest"
)

const nsid = "blue.catbird.mls.createConvo"

// bench is a store, its faults, and a table of the test whose rows are the effects of writes.
type bench struct {
	*idem.Store
	db     *pgxpool.Pool
	faults *failpoint.Set
	counts counts
}

type counts struct{ first, replayed, conflicted, inProgress, expired, takenOver, heartbeatLost atomic.Int64 }

func (c *counts) First(string)         { c.first.Add(1) }
func (c *counts) Replayed(string)      { c.replayed.Add(1) }
func (c *counts) Conflicted(string)    { c.conflicted.Add(1) }
func (c *counts) InProgress(string)    { c.inProgress.Add(1) }
func (c *counts) Expired(string)       { c.expired.Add(1) }
func (c *counts) TakenOver(string)     { c.takenOver.Add(1) }
func (c *counts) HeartbeatLost(string) { c.heartbeatLost.Add(1) }

func newBench(t *testing.T, options ...idem.Option) *bench {
	t.Helper()
	b := &bench{db: pgtest.Database(t, pgtest.MaxConns(24)), faults: failpoint.New()}
	b.Store = idem.New(b.db, &b.counts, slog.New(slog.DiscardHandler), b.faults, options...)
	// the application's role can use it by default
	if _, err := b.db.Exec(t.Context(), `CREATE TABLE effects (id bigserial PRIMARY KEY, note text)`); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) effects(t *testing.T) (n int) {
	t.Helper()
	if err := b.db.QueryRow(t.Context(), `SELECT count(*) FROM effects`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// effect inserts a row and answers with its number, so that two runs cannot give the same answer.
func effect(ctx context.Context, tx pgx.Tx) ([]byte, error) {
	var id int64
	err := tx.QueryRow(ctx, `INSERT INTO effects (note) VALUES ('x') RETURNING id`).Scan(&id)
	return fmt.Appendf(nil, `{"id":%d}`, id), err
}

func request(key string, fields ...string) idem.Request {
	var c idem.Content
	for i := 0; i < len(fields); i += 2 {
		c = append(c, idem.Field{Name: fields[i], JSON: []byte(fields[i+1])})
	}
	return idem.Request{Caller: "did:plc:alice", NSID: nsid, Key: key, Input: c}
}

func TestReplayIsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first, err := b.Do(t.Context(), request("k", "a", "1"), effect)
	if err != nil || first.Replayed {
		t.Fatalf("first: %+v, %v", first, err)
	}
	again, err := b.Do(t.Context(), request("k", "a", "1"), effect)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(idem.Answer{Body: first.Body, Replayed: true, Outcome: idem.Success}, again); diff != "" {
		t.Fatalf("replay (-want +got):\n%s", diff)
	}
	if n := b.effects(t); n != 1 {
		t.Fatalf("%d effects", n)
	}
}

// S9: a field inside an object is named by its path. A record of an earlier version has no hashes of
// such fields; then the object is named.
func TestConflictNamesFieldsInside(t *testing.T) {
	t.Parallel()
	first := []string{"m", `{"a":1,"b":{"c":2,"d":3}}`, "z", `[{"x":1}]`}
	for name, test := range map[string]struct {
		second []string
		want   []string
		old    bool // the record is of an earlier version
	}{
		"inside":           {[]string{"m", `{"a":1,"b":{"c":2,"d":4}}`, "z", `[{"x":1}]`}, []string{"m.b.d"}, false},
		"inside and array": {[]string{"m", `{"a":2,"b":{"c":2,"d":3}}`, "z", `[{"x":2}]`}, []string{"m.a", "z"}, false},
		"gone":             {[]string{"m", `{"a":1}`, "z", `[{"x":1}]`}, []string{"m.b"}, false},
		"bytes":            {[]string{"m", `{"a":1,"b":{"c":2,"d":3}}`, "z", `{"$bytes":"AAAA"}`}, []string{"z"}, false},
		"all gone":         {[]string{"z", `[{"x":1}]`}, []string{"m"}, false},
		"empty":            {[]string{"m", `{}`, "z", `[{"x":1}]`}, []string{"m"}, false},
		"old record":       {[]string{"m", `{"a":2,"b":{"c":2,"d":3}}`, "z", `[{"x":1}]`}, []string{"m"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			if _, err := b.Do(t.Context(), request("k", first...), effect); err != nil {
				t.Fatal(err)
			}
			if test.old {
				if _, err := b.db.Exec(t.Context(), `
					UPDATE idempotency_keys SET field_hashes = field_hashes - '{m.a,m.b,m.b.c,m.b.d}'::text[]`); err != nil {
					t.Fatal(err)
				}
			}
			_, err := b.Do(t.Context(), request("k", test.second...), effect)
			var conflict *idem.ConflictError
			if !errors.As(err, &conflict) {
				t.Fatalf("got %v", err)
			}
			if diff := cmp.Diff(test.want, conflict.Fields); diff != "" {
				t.Fatalf("differing fields (-want +got):\n%s", diff)
			}
			if len(conflict.First) != 32 || len(conflict.Hash) != 32 || bytes.Equal(conflict.First, conflict.Hash) {
				t.Fatalf("hashes %x and %x", conflict.First, conflict.Hash)
			}
		})
	}
}

func TestConflictNamesTheFields(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if _, err := b.Do(t.Context(), request("k", "a", `"one"`, "b", "2", "c", "3"), effect); err != nil {
		t.Fatal(err)
	}
	_, err := b.Do(t.Context(), request("k", "a", `"two"`, "b", "2", "d", "4"), effect)
	var conflict *idem.ConflictError
	if !errors.As(err, &conflict) {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff([]string{"a", "c", "d"}, conflict.Fields); diff != "" {
		t.Fatalf("differing fields (-want +got):\n%s", diff)
	}
	if conflict.At.IsZero() || b.counts.conflicted.Load() != 1 {
		t.Fatal("the conflict says nothing of the first request, or was not counted")
	}
}

func TestKeysAreScoped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	base := request("k", "a", "1")
	caller, method, convo := base, base, base
	caller.Caller, method.NSID, convo.Scope = "did:plc:bob", "blue.catbird.mls.addMembers", "convo"
	seen := map[string]bool{}
	for _, req := range []idem.Request{base, caller, method, convo} {
		answer, err := b.Do(t.Context(), req, effect)
		if err != nil || answer.Replayed {
			t.Fatalf("%+v: %+v, %v", req, answer, err)
		}
		seen[string(answer.Body)] = true
	}
	if len(seen) != 4 {
		t.Fatalf("%d different answers, want 4", len(seen))
	}
}

func TestNoKeyLeavesNoRecord(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range 2 {
		if answer, err := b.Do(t.Context(), request(""), effect); err != nil || answer.Replayed {
			t.Fatalf("%+v, %v", answer, err)
		}
	}
	var records int
	if err := b.db.QueryRow(t.Context(), `SELECT count(*) FROM idempotency_keys`).Scan(&records); err != nil ||
		records != 0 {
		t.Fatalf("%d records, %v", records, err)
	}
}

func TestRefusedWriteIsJudgedAnew(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	refused := errors.New("refused")
	_, err := b.Do(t.Context(), request("k"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		if _, err := effect(ctx, tx); err != nil {
			return nil, err
		}
		return nil, refused
	})
	if !errors.Is(err, refused) || b.effects(t) != 0 {
		t.Fatalf("got %v and %d effects", err, b.effects(t))
	}
	if answer, err := b.Do(t.Context(), request("k", "other", "1"), effect); err != nil || answer.Replayed {
		t.Fatalf("after the refusal: %+v, %v", answer, err)
	}
}

// TestConcurrentDuplicates: the second request waits for the first one on the unique index and gets
// its answer.
func TestConcurrentDuplicates(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const n = 20
	answers := make([]idem.Answer, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { answers[i], errs[i] = b.Do(t.Context(), request("k", "a", "1"), effect) })
	}
	wg.Wait()
	first := 0
	for i := range n {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if !answers[i].Replayed {
			first++
		}
		if diff := cmp.Diff(answers[0].Body, answers[i].Body); diff != "" {
			t.Fatalf("answers differ:\n%s", diff)
		}
	}
	if first != 1 || b.effects(t) != 1 {
		t.Fatalf("%d first answers, %d effects", first, b.effects(t))
	}
}

// TestStillRunning: a duplicate that waited for lock_timeout gets ErrInProgress, and nothing else
// happens.
func TestStillRunning(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, nsid, failpoint.Pause)
	reached := b.faults.Reached(failpoint.BeforeCommit, nsid)
	var first idem.Answer
	var firstErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		first, firstErr = b.Do(t.Context(), request("k"), effect)
	}()
	<-reached
	if _, err := b.Do(t.Context(), request("k"), effect); !errors.Is(err, idem.ErrInProgress) {
		t.Fatalf("while the first runs: %v", err)
	}
	b.faults.Resume(failpoint.BeforeCommit, nsid)
	<-done
	if firstErr != nil {
		t.Fatal(firstErr)
	}
	again, err := b.Do(t.Context(), request("k"), effect)
	if err != nil || !again.Replayed || string(again.Body) != string(first.Body) {
		t.Fatalf("after it: %+v, %v", again, err)
	}
	if b.counts.inProgress.Load() != 1 {
		t.Fatal("not counted")
	}
}

// TestLostCommit: the connection is lost before or after COMMIT.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	t.Run("after it took effect", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		failpointtest.Arm(t, b.faults, failpoint.AfterCommit, nsid, failpoint.Error)
		answer, err := b.Do(t.Context(), request("k"), effect)
		if err != nil || answer.Replayed {
			t.Fatalf("the look-up should find the write: %+v, %v", answer, err)
		}
		if again, err := b.Do(t.Context(), request("k"), effect); err != nil || string(again.Body) != string(answer.Body) {
			t.Fatalf("retry: %+v, %v", again, err)
		}
	})
	t.Run("before it took effect", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, nsid, failpoint.Error)
		if _, err := b.Do(t.Context(), request("k"), effect); !errors.Is(err, failpoint.ErrInjected) {
			t.Fatal(err)
		}
		if n := b.effects(t); n != 0 {
			t.Fatalf("%d effects", n)
		}
	})
	t.Run("without a key the outcome is unknown", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		failpointtest.Arm(t, b.faults, failpoint.AfterCommit, nsid, failpoint.Error)
		if _, err := b.Do(t.Context(), request(""), effect); !errors.Is(err, idem.ErrUnknownOutcome) {
			t.Fatal(err)
		}
	})
	t.Run("by a terminated backend", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		var pid int
		failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, nsid, failpoint.Pause)
		reached := b.faults.Reached(failpoint.BeforeCommit, nsid)
		failed := make(chan error, 1)
		go func() {
			_, err := b.Do(t.Context(), request("k"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				if err := tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
					return nil, err
				}
				return effect(ctx, tx)
			})
			failed <- err
		}()
		<-reached
		if _, err := b.db.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, pid); err != nil {
			t.Fatal(err)
		}
		b.faults.Resume(failpoint.BeforeCommit, nsid)
		if err := <-failed; !errors.Is(err, idem.ErrUnknownOutcome) {
			t.Fatalf("got %v", err)
		}
		if answer, err := b.Do(t.Context(), request("k"), effect); err != nil || answer.Replayed || b.effects(t) != 1 {
			t.Fatalf("retry: %+v, %v, %d effects", answer, err, b.effects(t))
		}
	})
	// Found by clientsim torture: getKeyPackages then answered with the KeyPackages that its own
	// transaction had claimed, and rolled back.
	t.Run("another request has done it meanwhile", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		answering := func(body string, pid *int) idem.Effect {
			return func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				if err := tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(pid); err != nil {
					return nil, err
				}
				_, err := effect(ctx, tx)
				return []byte(body), err
			}
		}
		failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, nsid, failpoint.Pause)
		reached := b.faults.Reached(failpoint.BeforeCommit, nsid)
		type outcome struct {
			answer idem.Answer
			err    error
		}
		var pid, other int
		first := make(chan outcome, 1)
		go func() {
			answer, err := b.Do(t.Context(), request("k"), answering("rolled back", &pid))
			first <- outcome{answer, err}
		}()
		<-reached
		if _, err := b.db.Exec(t.Context(), `SELECT pg_terminate_backend($1)`, pid); err != nil {
			t.Fatal(err)
		}
		if answer, err := b.Do(t.Context(), request("k"), answering("committed", &other)); err != nil || answer.Replayed {
			t.Fatalf("the other request: %+v, %v", answer, err)
		}
		b.faults.Resume(failpoint.BeforeCommit, nsid)
		if got := <-first; got.err != nil || string(got.answer.Body) != "committed" || !got.answer.Replayed {
			t.Errorf("the lost request: %q, replayed %t, %v; want the replay of the other's answer", got.answer.Body,
				got.answer.Replayed, got.err)
		}
		if n := b.effects(t); n != 1 {
			t.Errorf("%d effects, want 1", n)
		}
	})
}

// TestImpatientCaller: a caller that hangs up during the COMMIT does not make its outcome unknown.
func TestImpatientCaller(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failpointtest.Arm(t, b.faults, failpoint.AfterCommit, nsid, failpoint.Pause)
	reached := b.faults.Reached(failpoint.AfterCommit, nsid)
	type outcome struct {
		answer idem.Answer
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		answer, err := b.Do(ctx, request("k"), effect)
		done <- outcome{answer, err}
	}()
	<-reached
	cancel()
	b.faults.Resume(failpoint.AfterCommit, nsid)
	got := <-done
	if got.err != nil || len(got.answer.Body) == 0 {
		t.Fatalf("the write was done, but: %v", got.err)
	}
	if _, err := b.Do(ctx, request("l"), effect); err == nil || b.effects(t) != 1 {
		t.Fatalf("a caller that was gone before the start: %v, %d effects", err, b.effects(t))
	}
}

func TestContentHash(t *testing.T) {
	t.Parallel()
	a := idem.Content{{Name: "a", JSON: []byte(`[1,2]`)}, {Name: "b", JSON: []byte(`"x"`)}}
	if a.Hash() == (idem.Content{{Name: "a", JSON: []byte(`[2,1]`)}, {Name: "b", JSON: []byte(`"x"`)}}).Hash() {
		t.Error("arrays keep their order")
	}
	if got := a.KeyOr(""); len(got) != len("sha256:")+64 {
		t.Errorf("derived key %q", got)
	}
}

// A16: contents that look alike have different hashes, and so have a hundred thousand others.
func TestHashesDoNotCollide(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	add := func(fields ...string) {
		t.Helper()
		var c idem.Content
		for i := 0; i < len(fields); i += 2 {
			c = append(c, idem.Field{Name: fields[i], JSON: []byte(fields[i+1])})
		}
		if other, ok := seen[c.KeyOr("")]; ok {
			t.Errorf("%q has the hash of %s", fields, other)
		}
		seen[c.KeyOr("")] = fmt.Sprintf("%q", fields)
	}
	add()
	for _, value := range []string{`null`, `""`, `"1"`, `1`, `11`, `"1,1"`, `[]`, `[1]`, `[1,1]`, `["1"]`, `[[1],1]`,
		`[1,[1]]`, `{}`, `{"b":1}`, `{"b":"1"}`, `"b"`, `"\",\"b\":\"1"`} {
		add("a", value)
		add("b", value)
		add("a", value, "b", value)
		add("b", value, "a", value)
		add("ab", value)
		add("a", `{"b":`+value+`,"c":2}`)
	}
	for i := range 100_000 {
		add("n", strconv.Itoa(1000+i))
	}
}
