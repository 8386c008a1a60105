package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/api/mlsapi"
	"mlsd/features/requests"
	"mlsd/internal/pgtest"
)

// watchedWrites is a writeWatch whose rounds a test runs.
type watchedWrites struct {
	*writeWatch
	t     *testing.T
	lines *lines
	at    time.Time
}

func newWatchedWrites(t *testing.T) *watchedWrites {
	t.Helper()
	w := &watchedWrites{t: t, at: time.Now()}
	var log *slog.Logger
	w.lines, log = newLines()
	w.writeWatch = newWriteWatch(pgtest.Database(t), log, func() time.Time { return w.at })
	w.heldLong = 0
	return w
}

// round lets one round pass with the given answers, and returns what it logged.
func (w *watchedWrites) round(answers ...requests.Request) string {
	w.t.Helper()
	for _, a := range answers {
		w.Answered(a)
	}
	w.at = w.at.Add(writesInterval)
	w.lines.Reset()
	if err := w.RunOnce(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return w.lines.String()
}

var (
	sent    = requests.Request{NSID: mlsapi.NSIDSendMessage, Status: 200}
	waited  = requests.Request{NSID: mlsapi.NSIDSendMessage, Status: 409, Error: mlsapi.ErrRequestInProgress}
	broken  = requests.Request{NSID: mlsapi.NSIDCreateConvo, Status: 503, Error: "ServiceUnavailable"}
	refused = requests.Request{NSID: mlsapi.NSIDSendMessage, Status: 409, Error: mlsapi.ErrEpochMismatch}
	read    = requests.Request{NSID: mlsapi.NSIDGetConvos, Status: 200}
)

// G4: writes that do not succeed are seen in the second round, with the cause; repeated each minute,
// and not more often; and it is said when they succeed again.
func TestWritesDoNotSucceed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		lock string // what another session does in an open transaction
		last error
		want []string // in the line
	}{
		{name: "rows of convos", lock: `SELECT FROM convos FOR UPDATE`,
			want: []string{"locks are held by pid ", "idle in transaction", "on convos", "since "}},
		{name: "a table", lock: `LOCK TABLE messages IN SHARE MODE`, want: []string{"held by pid ", "on messages"}},
		{name: "an index that is built", lock: `LOCK TABLE welcomes IN SHARE UPDATE EXCLUSIVE MODE`,
			want: []string{"held by pid ", "on welcomes"}},
		{name: "a reader", lock: `SELECT count(*) FROM convos`, want: []string{"no other transaction holds locks"}},
		{name: "a full disk", last: &pgconn.PgError{Code: "53100"}, want: []string{"disk is full"}},
		{name: "a standby", last: fmt.Errorf("send: %w", &pgconn.PgError{Code: "25006"}), want: []string{"read-only"}},
		{name: "a full disk, seen by new connections", last: fmt.Errorf("connect: %w",
			&pgconn.PgError{Code: "XX000", Message: "could not write init file"}), want: []string{"disk is full"}},
		{name: "something else", last: errors.New("it broke"), want: []string{"it broke"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWatchedWrites(t)
			end := func() {}
			if tc.lock != "" {
				tx, err := w.db.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				end = func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
				defer end()
				if _, err := tx.Exec(t.Context(), tc.lock); err != nil {
					t.Fatal(err)
				}
			}
			w.takes(tc.last, 0)
			w.round(waited, broken)
			if w.fault() != "" || w.failing() != 0 {
				t.Errorf("one bad round is a fault: %s", w.fault())
			}
			if tc.last != nil && w.takes(tc.last, 0) {
				t.Error("a record is left out before a line says why")
			}
			line := w.round(waited)
			for _, want := range append(tc.want, "writes do not succeed") {
				if !strings.Contains(line, want) {
					t.Errorf("the line lacks %q: %s", want, line)
				}
			}
			if w.failing() != 1 || !w.takes(errors.New("request failed"), 7) {
				t.Error("the fault is not known, or its records are written")
			}
			if lines := w.round(waited, read, refused) + w.round(); lines != "" {
				t.Errorf("it is said again: %s", lines)
			}
			w.at = w.at.Add(sayEvery)
			if line := w.round(waited); !strings.Contains(line, "left_out=7") {
				t.Errorf("after a minute: %s", line)
			}
			end()
			if line := w.round(sent, waited); !strings.Contains(line, "writes succeed again") || w.fault() != "" {
				t.Errorf("at the end: %s, fault %s", line, w.fault())
			}
		})
	}
}

// G4: writes do not succeed, and nobody can ask the database why. The error that says why stays,
// whatever comes after it.
func TestWritesFailAndNobodyCanAsk(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		said []error // by the database
		want string
	}{
		{"it never answers", nil, "look for COMMITs that wait"},
		{"its disk was full", []error{&pgconn.PgError{Code: "53100"}, errors.New("connection refused")}, "disk is full"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWatchedWrites(t)
			w.db.Close()
			for _, err := range tc.said {
				w.takes(err, 0)
			}
			w.Answered(broken)
			_ = w.RunOnce(t.Context()) // the first round is no fault yet
			if line := w.round(broken); !strings.Contains(line, tc.want) || w.failing() != 1 {
				t.Errorf("the line lacks %q: %s", tc.want, line)
			}
			if w.round(broken); !strings.Contains(w.fault(), tc.want) {
				t.Errorf("a round later it is %s", w.fault())
			}
		})
	}
}

// A fault ends if nobody writes for a minute. Until then, quiet rounds change nothing.
func TestNobodyWritesAnyMore(t *testing.T) {
	t.Parallel()
	w := newWatchedWrites(t)
	w.round(broken)
	w.round(broken)
	for range quietRounds - 1 {
		if line := w.round(); line != "" || w.failing() != 1 {
			t.Fatalf("the fault ends too early: %s", line)
		}
	}
	if line := w.round(); !strings.Contains(line, "nobody writes any more") || w.failing() != 0 {
		t.Errorf("the fault lasts: %s", line)
	}
	if w.round(broken); w.failing() != 0 {
		t.Error("one bad round is a fault, because of those before the pause")
	}
}

// While other writes succeed, writes that wait for locks are no fault, but a line names the holder.
func TestSomeWritesWait(t *testing.T) {
	t.Parallel()
	w := newWatchedWrites(t)
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE key_packages IN ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if line := w.round(sent, waited); !strings.Contains(line, "some writes wait") ||
			!strings.Contains(line, "key_packages") {
			t.Errorf("the holder is not named: %s", line)
		}
		if line := w.round(sent); line != "" || w.fault() != "" {
			t.Errorf("writes succeed, and there is a line or a fault: %s %s", line, w.fault())
		}
	}
}

// G5: COMMITs that wait for a standby that is away are named, with the setting. A COMMIT that has
// just begun to wait is not: each COMMIT does on a pair that is well.
func TestCommitsWaitForAStandby(t *testing.T) {
	t.Parallel()
	p := pgtest.NewPair(t)
	operator := pgtest.Session(t, p.Primary)
	exec := func(sql string) {
		t.Helper()
		if _, err := operator.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`ALTER SYSTEM SET synchronous_standby_names = 'away'`)
	exec(`SELECT pg_reload_conf()`)
	w := newWatchedWrites(t)
	w.db = p.Pool()
	committed := make(chan error, 1)
	begun := time.Now()
	go func() {
		_, err := w.db.Exec(t.Context(), `CREATE TABLE late ()`)
		committed <- err
	}()
	const want = "COMMITs wait for a standby: synchronous_standby_names is 'away'"
	for deadline := time.Now().Add(time.Minute); ; {
		if got, err := w.waitsFor(t.Context()); err != nil || time.Now().After(deadline) {
			t.Fatalf("%q, %v", got, err)
		} else if got == want {
			break
		}
	}
	if took := time.Since(begun); took < commitLong {
		t.Errorf("a COMMIT is named that has waited for %s", took)
	}
	w.round(broken)
	if line := w.round(broken); !strings.Contains(line, want) || w.failing() != 1 {
		t.Errorf("the line lacks the standby: %s", line)
	}
	exec(`ALTER SYSTEM RESET synchronous_standby_names`)
	exec(`SELECT pg_reload_conf()`)
	if err := <-committed; err != nil {
		t.Error(err)
	}
	if got, err := w.waitsFor(t.Context()); got != "" || err != nil {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}
