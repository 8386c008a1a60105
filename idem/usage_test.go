package idem_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/pgtest"
)

func (b *bench) audited(t *testing.T, entity string) []string {
	t.Helper()
	rows, err := b.db.Query(t.Context(), `
		SELECT format('%s: %s to %s, %s, %s', entity_id, from_state, to_state, actor, reason) FROM audit_log WHERE entity = $1
			ORDER BY id`, entity)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// Finding S4: that a key is used anew after its record's lifetime is in the audit log, if the new
// request takes effect.
func TestReuseIsAudited(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if _, err := b.Do(t.Context(), request("k", "a", "1"), effect); err != nil {
		t.Fatal(err)
	}
	pgtest.Age(t, b.db, "idempotency_keys", 8*24*time.Hour, "expires_at")
	refused := errors.New("refused")
	_, err := b.Do(t.Context(), request("k", "a", "2"),
		func(context.Context, pgx.Tx) ([]byte, error) { return nil, refused })
	if !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if lines := b.audited(t, "record"); len(lines) != 0 {
		t.Errorf("after a refusal: %q", lines)
	}
	if answer, err := b.Do(t.Context(), request("k", "a", "2"), effect); err != nil || !answer.Expired {
		t.Fatalf("%+v, %v", answer, err)
	}
	want := []string{nsid + " k: expired to reused, did:plc:alice, createConvo"}
	if diff := cmp.Diff(want, b.audited(t, "record")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Finding S3: a write under a new key is counted once it is committed, also after a lost COMMIT. A
// refusal, a replay and a reuse are not first uses.
func TestFirstUses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	wantFirst := func(what string, want int64) {
		t.Helper()
		if got := b.counts.first.Load(); got != want {
			t.Errorf("after %s: %d first uses, want %d", what, got, want)
		}
	}
	do := func(key string) {
		t.Helper()
		if _, err := b.Do(t.Context(), request(key), effect); err != nil {
			t.Fatal(err)
		}
	}
	refused := errors.New("refused")
	if _, err := b.Do(t.Context(), request("k"),
		func(context.Context, pgx.Tx) ([]byte, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	wantFirst("a refusal", 0)
	do("k")
	wantFirst("the first use", 1)
	do("k")
	wantFirst("a replay", 1)
	do("")
	wantFirst("a write without a key", 1)
	failpointtest.Arm(t, b.faults, failpoint.AfterCommit, nsid, failpoint.Error)
	do("l")
	wantFirst("a lost COMMIT", 2)
	pgtest.Age(t, b.db, "idempotency_keys", 8*24*time.Hour, "expires_at")
	do("k")
	wantFirst("a reuse", 2)
	if _, err := b.Run(t.Context(), outside("job"),
		func(context.Context, int64) (idem.Done, error) { return b.done(t, "done"), nil }); err != nil {
		t.Fatal(err)
	}
	wantFirst("work outside the database", 3)
}

// Finding S3: a reservation keeps the error of its last failed attempt, and says that a holder was
// taken over.
func TestLastError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lastError := func(key string) string {
		t.Helper()
		var text *string
		if err := b.db.QueryRow(t.Context(), `SELECT last_error FROM idempotency_keys WHERE key = $1`,
			key).Scan(&text); err != nil {
			t.Fatal(err)
		}
		if text == nil {
			return ""
		}
		return *text
	}
	fails := func(text string) idem.Work {
		return func(context.Context, int64) (idem.Done, error) { return idem.Done{}, errors.New(text) }
	}
	succeeds := func(context.Context, int64) (idem.Done, error) { return b.done(t, "done"), nil }
	long := "no\x00thing\xff " + strings.Repeat("x", 300)
	if _, err := b.Run(t.Context(), outside("k"), fails(long)); err == nil {
		t.Fatal("the work did not fail")
	}
	if got, want := lastError("k"), "nothing\uFFFD "+strings.Repeat("x", 191); got != want {
		t.Errorf("after a failure: %q, want %q", got, want)
	}
	if _, err := b.Run(t.Context(), outside("k"), succeeds); err != nil {
		t.Fatal(err)
	}
	if lastError("k") == "" {
		t.Error("success has deleted the last error")
	}
	failpointtest.Arm(t, b.faults, failpoint.AfterReserve, idem.NSIDPush, failpoint.Error)
	if _, err := b.Run(t.Context(), outside("l"), succeeds); err == nil {
		t.Fatal("the failpoint did not stop the work")
	}
	b.lapse(t)
	if _, err := b.Run(t.Context(), outside("l"), succeeds); err != nil {
		t.Fatal(err)
	}
	if got := lastError("l"); got != "its lease was over" {
		t.Errorf("after a takeover: %q", got)
	}
}

// Finding S5: a store holds reservations that state no lease for the lease that it was given.
func TestLeaseOfTheStore(t *testing.T) {
	t.Parallel()
	for given, want := range map[time.Duration]time.Duration{0: idem.DefaultLease, 2 * time.Minute: 2 * time.Minute} {
		b := newBench(t, idem.WithLease(given))
		h, work := b.blocked(t, "done")
		req := outside("k")
		req.Lease = 0
		ended := make(chan error, 1)
		go func() {
			_, err := b.Run(t.Context(), req, work)
			ended <- err
		}()
		<-h.begun
		var lease time.Duration
		if err := b.db.QueryRow(t.Context(),
			`SELECT lease_expires_at - started_at FROM idempotency_keys`).Scan(&lease); err != nil {
			t.Fatal(err)
		}
		if (lease - want).Abs() > time.Second {
			t.Errorf("the lease is %s, want %s", lease, want)
		}
		close(h.goOn)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// A record has the hashes of the request's fields and the answer, and none of the request's values.
// It lasts a week unless the request states a lifetime. Its two times enclose the effect.
func TestWhatARecordHolds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var during time.Time
	answer, err := b.Do(t.Context(), request("k", "a", `"a value of the request"`),
		func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			return []byte("the answer"), tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&during)
		})
	if err != nil {
		t.Fatal(err)
	}
	var row, stored string
	var created, completed time.Time
	var life time.Duration
	if err := b.db.QueryRow(t.Context(), `
		SELECT k::text, convert_from(response, 'UTF8'), created_at, completed_at, expires_at - created_at FROM
			idempotency_keys k`).Scan(&row, &stored, &created, &completed, &life); err != nil {
		t.Fatal(err)
	}
	if stored != string(answer.Body) || strings.Contains(row, "a value of the request") {
		t.Errorf("the record is %s", row)
	}
	if created.After(during) || completed.Before(during) {
		t.Errorf("the record says from %s to %s, the effect was at %s", created, completed, during)
	}
	if (life - 7*24*time.Hour).Abs() > time.Second {
		t.Errorf("the record lasts %s", life)
	}
}
