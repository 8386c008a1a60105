package pgwire_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/clientsim/torture/pgwire"
	"mlsd/internal/pgtest"
)

// bench is a proxy in front of a database with one table.
type bench struct {
	proxy  *pgwire.Proxy
	direct *pgx.Conn
	url    string // through the proxy
}

func newBench(t *testing.T) *bench {
	t.Helper()
	url := pgtest.EmptyURL(t)
	proxy, err := pgwire.New(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	through, err := proxy.Through(url)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{proxy: proxy, direct: dial(t, url), url: through}
	if _, err := b.direct.Exec(t.Context(), `CREATE TABLE rows (id bigint)`); err != nil {
		t.Fatal(err)
	}
	return b
}

func dial(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // a test may have cut it
	return conn
}

func (b *bench) arm(t *testing.T, point pgwire.Point, action pgwire.Action, d time.Duration) {
	t.Helper()
	if err := b.proxy.Arm(pgwire.Fault{Point: point, Action: action, For: d}); err != nil {
		t.Fatal(err)
	}
}

// insert inserts a row in a transaction and arms the fault before COMMIT.
func (b *bench) insert(t *testing.T, conn *pgx.Conn, point pgwire.Point, action pgwire.Action, d time.Duration) error {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO rows VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	b.arm(t, point, action, d)
	return tx.Commit(t.Context())
}

// empty deletes the rows of an earlier part of the test.
func (b *bench) empty(t *testing.T) {
	t.Helper()
	if _, err := b.direct.Exec(t.Context(), `TRUNCATE rows`); err != nil {
		t.Fatal(err)
	}
}

// rows counts the rows once all other sessions have ended.
func (b *bench) rows(t *testing.T) (n int) {
	t.Helper()
	for others := true; others; {
		if err := b.direct.QueryRow(t.Context(), `
			SELECT count(*) > 0 FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`).
			Scan(&others); err != nil {
			t.Fatal(err)
		}
	}
	// A statement of its own: the snapshot of the one above is older than their end.
	if err := b.direct.QueryRow(t.Context(), `SELECT count(*) FROM rows`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A client whose COMMIT is cut gets an error. Whether it was committed depends on where it was cut.
func TestCuts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		point  pgwire.Point
		action pgwire.Action
		rows   int
	}{
		{pgwire.Commit, pgwire.CutBefore, 0},
		{pgwire.Commit, pgwire.CutInside, 0},
		{pgwire.Commit, pgwire.CutAfter, 1},
		{pgwire.Committed, pgwire.CutBefore, 1},
		{pgwire.Committed, pgwire.CutInside, 1},
		{pgwire.Committed, pgwire.CutAfter, 1},
		{pgwire.Ready, pgwire.CutBefore, 1},
		{pgwire.Answer, pgwire.CutInside, 1},
		{pgwire.Request, pgwire.CutInside, 0},
	}
	b := newBench(t)
	for _, tt := range tests {
		fault := pgwire.Fault{Point: tt.point, Action: tt.action}
		t.Run(fault.Name(), func(t *testing.T) {
			b.empty(t)
			conn := dial(t, b.url)
			if err := b.insert(t, conn, tt.point, tt.action, 0); err == nil {
				t.Error("COMMIT succeeded on a connection that was cut")
			}
			if got := b.rows(t); got != tt.rows {
				t.Errorf("%d rows, want %d", got, tt.rows)
			}
			if got := b.proxy.Fired()[fault.Name()]; got != 1 {
				t.Errorf("the fault happened %d times, want once", got)
			}
		})
	}
}

// The statement that executes COMMIT is also found in a batch of prepared statements.
func TestCommitInBatch(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn := dial(t, b.url)
	batch := func() error {
		queries := &pgx.Batch{}
		queries.Queue("begin")
		queries.Queue("INSERT INTO rows VALUES (1)")
		queries.Queue("commit")
		return conn.SendBatch(t.Context(), queries).Close()
	}
	if err := batch(); err != nil {
		t.Fatal(err)
	}
	b.arm(t, pgwire.Committed, pgwire.CutBefore, 0)
	if err := batch(); err == nil {
		t.Error("the batch succeeded on a connection that was cut")
	}
	if got := b.rows(t); got != 2 {
		t.Errorf("%d rows, want 2", got)
	}
}

// Without BEGIN and COMMIT, the end of a request that writes commits. One that reads commits nothing.
func TestCommitWithoutCOMMIT(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, tt := range []struct {
		point  pgwire.Point
		action pgwire.Action
		rows   int
	}{
		{pgwire.Commit, pgwire.CutBefore, 0},
		{pgwire.Commit, pgwire.CutAfter, 1},
		{pgwire.Committed, pgwire.CutBefore, 1},
	} {
		fault := pgwire.Fault{Point: tt.point, Action: tt.action}
		t.Run(fault.Name(), func(t *testing.T) {
			b.empty(t)
			conn := dial(t, b.url)
			b.arm(t, tt.point, tt.action, 0)
			if _, err := conn.Exec(t.Context(), `SELECT count(*) FROM rows`); err != nil {
				t.Errorf("a read: %v", err)
			}
			if _, err := conn.Exec(t.Context(), `INSERT INTO rows VALUES ($1)`, 1); err == nil {
				t.Error("the write succeeded on a connection that was cut")
			}
			if got := b.rows(t); got != tt.rows {
				t.Errorf("%d rows, want %d", got, tt.rows)
			}
		})
	}
}

func TestDelayAndFreeze(t *testing.T) {
	t.Parallel()
	const d = 50 * time.Millisecond
	b := newBench(t)
	for _, action := range []pgwire.Action{pgwire.Delay, pgwire.Freeze} {
		for _, point := range pgwire.Points() {
			fault := pgwire.Fault{Point: point, Action: action}
			t.Run(fault.Name(), func(t *testing.T) {
				b.empty(t)
				conn := dial(t, b.url)
				begun := time.Now()
				if err := b.insert(t, conn, point, action, d); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begun); took < d {
					t.Errorf("it took %s, want at least %s", took, d)
				}
				if err := conn.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := b.rows(t); got != 1 {
					t.Errorf("%d rows, want 1", got)
				}
			})
		}
	}
}

// Heal ends a freeze that would last for an hour.
func TestHeal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn := dial(t, b.url)
	b.arm(t, pgwire.Commit, pgwire.CutBefore, 0) // Heal disarms it
	b.arm(t, pgwire.Request, pgwire.Freeze, time.Hour)
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), `SELECT count(*) FROM rows`)
		done <- err
	}()
	for b.proxy.Fired()["freeze request"] == 0 {
		select {
		case err := <-done:
			t.Fatalf("a frozen statement ended: %v", err)
		default:
		}
	}
	b.proxy.Heal()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("a COMMIT after Heal: %v", err)
	}
}

// With the answers' direction dead, COMMIT is done and the client hears nothing. With the requests'
// direction dead, it is not done.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	for point, want := range map[pgwire.Point]int{pgwire.Committed: 1, pgwire.Commit: 0} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			conn := dial(t, b.url)
			if err := b.insert(t, conn, point, pgwire.HalfOpen, 50*time.Millisecond); err == nil {
				t.Error("COMMIT succeeded on a connection that was half-open")
			}
			if got := b.rows(t); got != want {
				t.Errorf("%d rows, want %d", got, want)
			}
		})
	}
}

// A late COMMIT is done after its client was disconnected.
func TestLate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn := dial(t, b.url)
	if err := b.insert(t, conn, pgwire.Commit, pgwire.Late, time.Hour); err == nil {
		t.Error("a COMMIT succeeded that was not delivered yet")
	}
	var got int
	if err := b.direct.QueryRow(t.Context(), `SELECT count(*) FROM rows`).Scan(&got); err != nil || got != 0 {
		t.Errorf("%d rows before the COMMIT was delivered, want 0: %v", got, err)
	}
	b.proxy.Heal() // now it is
	if got := b.rows(t); got != 1 {
		t.Errorf("%d rows after the COMMIT was delivered, want 1", got)
	}
}

func TestCutAllAndReconnect(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn := dial(t, b.url)
	b.proxy.CutAll()
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection outlives CutAll")
	}
	if err := dial(t, b.url).Ping(t.Context()); err != nil {
		t.Errorf("a new connection after CutAll: %v", err)
	}
}

func TestLateAnswerIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if err := b.proxy.Arm(pgwire.Fault{Point: pgwire.Ready, Action: pgwire.Late}); err == nil {
		t.Error("an answer can be delivered to a client that is gone")
	}
}

// A request to cancel a statement goes through the proxy.
func TestCancel(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	conn := dial(t, b.url)
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), `SELECT pg_sleep(60)`)
		done <- err
	}()
	for active := false; !active; {
		err := b.direct.QueryRow(t.Context(), `
			SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND pid <> pg_backend_pid() AND state =
				'active'
			               AND datname = current_database())`).Scan(&active)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled statement ended with %v", err)
	}
}
