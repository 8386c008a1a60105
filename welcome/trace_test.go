package welcome_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgtest"
	"mlsd/internal/ratelog"
	"mlsd/mls"
	"mlsd/welcome"
)

// outcomes counts confirmations. It is safe for concurrent use.
type outcomes struct {
	mu sync.Mutex // guards n
	n  map[welcome.Outcome]int
}

func (o *outcomes) count(what welcome.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == nil {
		o.n = map[welcome.Outcome]int{}
	}
	o.n[what]++
}

func (o *outcomes) all() map[welcome.Outcome]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}

// trace is what a Welcome's row keeps of its confirmations.
type trace struct {
	State       welcome.State
	Attempts    int
	Failures    int
	LastFailure *string
	Failed      bool // last_failed_at is set
	LastError   *string
	Silent      bool
}

func traceOf(t *testing.T, db *pgxpool.Pool, convo uuid.UUID) trace {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT state, attempts, failures, last_failure, last_failed_at IS NOT NULL, last_error, silent FROM welcomes WHERE
			convo_id = $1`, convo)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[trace])
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// audited returns the audit log's lines with details.
func audited(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT format('%s by %s: %s to %s, version %s: %s', reason, actor, from_state, to_state, version, details)
		FROM audit_log WHERE details IS NOT NULL ORDER BY at, id`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func text(s string) *string { return &s }

// TestFailuresStay: E10, S2. A failed join is counted once per lease, and stays on the row with its
// words across later leases and after success. It has a line in the audit log and one in the log,
// which names the Welcome and no DID.
func TestFailuresStay(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	policy := welcome.Policy{Grace: grace, OnExpiry: welcome.Release}
	var counted outcomes
	var log bytes.Buffer
	service := welcome.New(db, policy, counted.count, slog.New(slog.NewTextHandler(&log, nil)), nil)
	convo := uuid.New()
	add(t, db, convo, 1, welcome.Recipient{DID: bob, DeviceID: "phone", Ref: mls.KeyPackageRef("ref")})
	join(t, db, convo, bob)
	fetch := func() {
		t.Helper()
		if _, err := service.Fetch(t.Context(), convo, phone); err != nil {
			t.Fatal(err)
		}
	}
	confirm := func(success bool, details string, want welcome.State) {
		t.Helper()
		if state, _, err := service.Confirm(t.Context(), convo, phone, success, details); err != nil || state != want {
			t.Fatalf("%s, %v; want %s", state, err, want)
		}
	}
	long := "out of memory " + strings.Repeat("é", 1000)
	if _, _, err := service.Confirm(t.Context(), convo, phone, false, "too soon"); err == nil {
		t.Fatal("confirmed what was never fetched")
	}
	fetch()
	confirm(false, "no such key", welcome.InFlight)
	confirm(false, "no such key, again", welcome.InFlight) // a retry, or another try under the same lease
	pgtest.Age(t, db, "welcomes", 2*grace)
	fetch()
	if diff := cmp.Diff(trace{welcome.InFlight, 2, 1, text("no such key, again"), true, nil, false},
		traceOf(t, db, convo)); diff != "" {
		t.Errorf("under the second lease (-want +got):\n%s", diff)
	}
	confirm(false, long, welcome.InFlight)
	pgtest.Age(t, db, "welcomes", 2*grace)
	fetch()
	confirm(true, "", welcome.Consumed)
	confirm(true, "", welcome.Consumed)
	confirm(false, "late", welcome.Consumed)
	kept := long[:1024] // 14 letters and 505 characters of two bytes
	if diff := cmp.Diff(trace{welcome.Consumed, 3, 2, &kept, true, nil, false}, traceOf(t, db, convo)); diff != "" {
		t.Errorf("after success (-want +got):\n%s", diff)
	}
	want := map[welcome.Outcome]int{welcome.Success: 1, welcome.Failure: 2, welcome.Unchanged: 3, welcome.Unknown: 1}
	if diff := cmp.Diff(want, counted.all()); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"confirmWelcome by did:plc:bob: in_flight to in_flight, version 2: no such key",
		"confirmWelcome by did:plc:bob: in_flight to in_flight, version 6: " + string([]rune(long)[:256]),
	}, audited(t, db)); diff != "" {
		t.Errorf("the audit log (-want +got):\n%s", diff)
	}
	var id string
	if err := db.QueryRow(t.Context(), `SELECT id FROM welcomes`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[1], "level=WARN") || !strings.Contains(lines[1], "welcome="+id) ||
		!strings.Contains(lines[1], "attempts=2 failures=2") || strings.Contains(log.String(), "did:") ||
		strings.Contains(log.String(), "memory") {
		t.Errorf("the log of two failures:\n%s", log.String())
	}
}

// TestSilence: S2, S6. Where silence counts as success, the row says that no device has confirmed.
// A device that fails later leaves a trace, once. One that joins later is known to have joined.
func TestSilence(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	policy := welcome.Policy{Grace: grace, OnExpiry: welcome.Consume}
	var counted outcomes
	service := welcome.New(db, policy, counted.count, slog.New(slog.DiscardHandler), nil)
	for _, swept := range []bool{true, false} {
		convo := uuid.New()
		add(t, db, convo, 1, welcome.Recipient{DID: bob, DeviceID: "phone", Ref: mls.KeyPackageRef("ref")})
		join(t, db, convo, bob)
		if _, err := service.Fetch(t.Context(), convo, phone); err != nil {
			t.Fatal(err)
		}
		pgtest.Age(t, db, "welcomes", 2*grace)
		if swept {
			if done := pgtest.Sweep(t, welcome.Sweeps(db, policy)...); done["welcomes_consumed"] != 1 {
				t.Fatalf("%v", done)
			}
		}
		for range 2 {
			if state, _, err := service.Confirm(t.Context(), convo, phone, false, "no bytes"); err != nil ||
				state != welcome.Consumed {
				t.Fatalf("%s, %v", state, err)
			}
		}
		if diff := cmp.Diff(trace{welcome.Consumed, 1, 1, text("no bytes"), true, text("no bytes"), true},
			traceOf(t, db, convo)); diff != "" {
			t.Errorf("swept %t: after silence and a failure (-want +got):\n%s", swept, diff)
		}
		for range 2 {
			if state, _, err := service.Confirm(t.Context(), convo, phone, true, ""); err != nil || state != welcome.Consumed {
				t.Fatalf("%s, %v", state, err)
			}
		}
		if diff := cmp.Diff(trace{welcome.Consumed, 1, 1, text("no bytes"), true, nil, false},
			traceOf(t, db, convo)); diff != "" {
			t.Errorf("swept %t: after the late success (-want +got):\n%s", swept, diff)
		}
	}
	want := map[welcome.Outcome]int{welcome.Success: 2, welcome.Failure: 2, welcome.Unchanged: 4}
	if diff := cmp.Diff(want, counted.all()); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

// lines counts the lines of a log.
type lines struct{ atomic.Int64 }

func (l *lines) Write(line []byte) (int, error) {
	l.Add(1)
	return len(line), nil
}

// TestFailuresOfAnOutsider: a device that reports a failure of each lease, again and again, writes
// a bounded number of lines into the log. The audit log and the counter have all of them.
func TestFailuresOfAnOutsider(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	var counted outcomes
	var log lines
	service := welcome.New(db, welcome.Policy{Grace: grace, OnExpiry: welcome.Release}, counted.count,
		slog.New(slog.NewTextHandler(&log, nil)), nil)
	convo := uuid.New()
	join(t, db, convo, bob)
	const failures = 3 * ratelog.Lines
	for epoch := range int64(failures) {
		add(t, db, convo, epoch, welcome.Recipient{DID: bob, DeviceID: "phone", Ref: mls.KeyPackageRef("ref")})
		if _, err := service.Fetch(t.Context(), convo, phone); err != nil {
			t.Fatal(err)
		}
		if _, _, err := service.Confirm(t.Context(), convo, phone, false, "no"); err != nil {
			t.Fatal(err)
		}
	}
	if n := counted.all()[welcome.Failure]; n != failures {
		t.Errorf("%d failures counted", n)
	}
	if n := log.Load(); n == 0 || n > 2*ratelog.Lines { // the test can take longer than ratelog.Every
		t.Errorf("%d lines", n)
	}
}
