package standby_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/internal/standby"
)

// patience is the longest wait for what a server does. Normally it takes some milliseconds.
const patience = time.Minute

// world is a primary with a table of one number, its standby, and a node that reads.
type world struct {
	*pgtest.Pair
	t        *testing.T
	db       *pgx.Conn // of the primary: another node, which writes
	reads    *standby.Reads
	registry *prometheus.Registry
	log      *lines
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Pair: pgtest.NewPair(t), t: t, log: &lines{}}
	w.db = pgtest.Session(t, w.Primary)
	w.exec(w.db, `CREATE TABLE numbers (n bigint NOT NULL)`)
	w.exec(w.db, `INSERT INTO numbers VALUES (0)`)
	w.awaitReplay()
	return w
}

// lines is a log.
type lines struct {
	mu  sync.Mutex // guards all
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// awaitReplay waits until the standby has replayed what the primary has written.
func (w *world) awaitReplay() {
	w.t.Helper()
	var end string
	if err := w.db.QueryRow(w.t.Context(), `SELECT pg_current_wal_flush_lsn()::text`).Scan(&end); err != nil {
		w.t.Fatal(err)
	}
	replay := pgtest.Session(w.t, w.Standby)
	for deadline, replayed := time.Now().Add(patience), false; !replayed; {
		if err := replay.QueryRow(w.t.Context(), `SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn`,
			end).Scan(&replayed); err != nil {
			w.t.Fatal(err)
		}
		if time.Now().After(deadline) {
			w.t.Fatal("the standby does not replay")
		}
	}
}

// read starts a node that reads from the standby at a URL.
func (w *world) read(primary, standbyURL string) {
	w.t.Helper()
	db, err := pgpool.Open(w.t.Context(), primary)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(db.Close)
	w.reads = standby.New(standby.Config{DB: db, Primary: config(w.t, primary).ConnConfig,
		Standby: config(w.t, standbyURL), Log: slog.New(slog.NewTextHandler(w.log, nil))})
	w.registry = prometheus.NewRegistry()
	w.reads.Register(w.registry)
	ctx, stop := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	w.t.Cleanup(func() {
		stop()
		running.Wait()
	})
	running.Go(func() { w.reads.Run(ctx) })
}

func config(t *testing.T, url string) *pgxpool.Config {
	t.Helper()
	cfg, err := pgpool.Config(url)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func (w *world) exec(db *pgx.Conn, sql string, args ...any) {
	w.t.Helper()
	if _, err := db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// write writes a number to the primary.
func (w *world) write(n int64) {
	w.t.Helper()
	w.exec(w.db, `UPDATE numbers SET n = $1`, n)
}

// number reads the number, and whether it came from the standby.
func (w *world) number() (n int64, fromStandby bool) {
	w.t.Helper()
	err := w.reads.Read(w.t.Context(), func(ctx context.Context, db *pgxpool.Pool) error {
		return db.QueryRow(ctx, `SELECT n, pg_is_in_recovery() FROM numbers`).Scan(&n, &fromStandby)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return n, fromStandby
}

// wants reads until a read comes from the standby, or from the primary. All must see at least n.
func (w *world) wants(fromStandby bool, n int64) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got, from := w.number()
		if got != n {
			w.t.Fatalf("a read sees %d (from the standby: %t), want %d", got, from, n)
		}
		if from == fromStandby {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("no read comes from the standby=%t", fromStandby)
		}
	}
}

// fromStandby runs a read that begins on the standby. It returns how often it ran, on the standby
// and after that on the primary.
func (w *world) fromStandby(ctx context.Context,
	read func(ctx context.Context, db *pgxpool.Pool, onStandby bool) error) (runs int, err error) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		var where []bool
		err := w.reads.Read(ctx, func(ctx context.Context, db *pgxpool.Pool) error {
			var onStandby bool
			if err := db.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&onStandby); err != nil {
				return err
			}
			if where = append(where, onStandby); !where[0] {
				return nil // the standby was behind just now: another read
			}
			return read(ctx, db, onStandby)
		})
		if len(where) > 0 && where[0] {
			return len(where), err
		}
	}
	w.t.Fatal("no read begins on the standby")
	return 0, nil
}

// metric returns the value of a series with at most one label.
func (w *world) metric(name, label string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	w.t.Fatalf("no series %s %s", name, label)
	return 0
}

// awaitState waits until the metrics show a state.
func (w *world) awaitState(state string) {
	w.t.Helper()
	w.await("mlsd_standby", state, func(is float64) bool { return is == 1 })
}

// await reads until the value of a series is as it should be.
func (w *world) await(name, label string, is func(float64) bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); !is(w.metric(name, label)); {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s %s stays %v", name, label, w.metric(name, label))
		}
		w.number()
	}
}

// A read sees what was written before it, on whatever node, while others write and read.
func TestReadsSeeEarlierWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.read(w.Primary, w.Standby)
	w.wants(true, 0)
	const writers, writes = 4, 150
	w.exec(w.db, `CREATE TABLE counts (id bigint PRIMARY KEY, n bigint NOT NULL)`)
	var (
		running     sync.WaitGroup
		mu          sync.Mutex // guards what follows
		fromStandby int
	)
	for id := range writers {
		other := pgtest.Session(t, w.Primary) // of another node
		w.exec(other, `INSERT INTO counts VALUES ($1, 0)`, id)
		running.Go(func() {
			for n := int64(1); n <= writes; n++ {
				if _, err := other.Exec(t.Context(), `UPDATE counts SET n = $2 WHERE id = $1`, id, n); err != nil {
					t.Error(err)
					return
				}
				var got int64
				var from bool
				err := w.reads.Read(t.Context(), func(ctx context.Context, db *pgxpool.Pool) error {
					return db.QueryRow(ctx, `SELECT n, pg_is_in_recovery() FROM counts WHERE id = $1`, id).Scan(&got, &from)
				})
				if err != nil || got != n {
					t.Errorf("a read after %d sees %d (from the standby: %t), %v", n, got, from, err)
					return
				}
				mu.Lock()
				if from {
					fromStandby++
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	t.Logf("%d of %d reads came from the standby", fromStandby, writers*writes)
	if fromStandby == 0 {
		t.Error("no read came from the standby")
	}
	if got := w.metric("mlsd_reads_total", "standby"); got < float64(fromStandby) {
		t.Errorf("the metrics show %v reads from the standby, of %d", got, fromStandby)
	}
}

// While the standby replays nothing, reads see what was written, on the primary. They come back by
// themselves.
func TestStandbyIsBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.read(w.Primary, w.Standby)
	w.wants(true, 0)
	replay := pgtest.Session(t, w.Standby)
	w.exec(replay, `SELECT pg_wal_replay_pause()`)
	w.write(1)
	w.wants(false, 1)
	w.awaitState("behind")
	w.await("mlsd_standby_lag_bytes", "", func(bytes float64) bool { return bytes > 0 })
	w.exec(replay, `SELECT pg_wal_replay_resume()`)
	w.wants(true, 1)
	w.await("mlsd_standby_lag_bytes", "", func(bytes float64) bool { return bytes == 0 })
}

// A transaction that does not wait for the disk can be seen before its WAL is flushed.
func TestCommitsDoNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(w.db, `ALTER DATABASE mlsd SET synchronous_commit = off`)
	w.db = pgtest.Session(t, w.Primary)
	w.read(w.Primary, w.Standby)
	w.wants(true, 0)
	for n := range int64(300) {
		w.write(n)
		if got, from := w.number(); got != n {
			t.Fatalf("a read after %d sees %d (from the standby: %t)", n, got, from)
		}
	}
}

// The standby is stopped, also under a read: that is repeated on the primary.
func TestStandbyStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.read(w.Primary, w.Standby)
	w.wants(true, 0)
	before := w.metric("mlsd_reads_repeated_total", "")
	runs, err := w.fromStandby(t.Context(), func(ctx context.Context, db *pgxpool.Pool, onStandby bool) error {
		if onStandby {
			w.Stop(pgtest.StandbyServer)
		}
		return db.Ping(ctx)
	})
	if err != nil || runs != 2 {
		t.Fatalf("the read ran %d times: %v", runs, err)
	}
	if got := w.metric("mlsd_reads_repeated_total", ""); got != before+1 {
		t.Errorf("%v reads were repeated, and %v before", got, before)
	}
	w.write(1)
	w.wants(false, 1)
	w.awaitState("unreachable")
	w.Start(pgtest.StandbyServer)
	w.wants(true, 1)
}

// The standby hangs, also under a read: that is repeated on the primary while the standby still
// hangs.
func TestStandbyHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	relay := newRelay(t, w.Standby)
	w.read(w.Primary, relay.url)
	w.wants(true, 0)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var begun time.Time
	runs, err := w.fromStandby(ctx, func(ctx context.Context, db *pgxpool.Pool, onStandby bool) error {
		if onStandby {
			begun = time.Now()
			relay.hang()
		}
		err := db.Ping(ctx)
		if onStandby && !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("the read ended with %v, want its context to end with the session: %v", err, ctx.Err())
		}
		return err
	})
	t.Logf("a read of a standby that hangs was repeated after %v", time.Since(begun))
	if err != nil || runs != 2 {
		t.Fatalf("the read ran %d times: %v", runs, err)
	}
	w.write(1)
	w.wants(false, 1)
	w.awaitState("unreachable")
	relay.goOn()
	w.wants(true, 1)
}

// The name of the standby leads to another server, while the session to the standby lasts. A new
// connection is refused, and the read is repeated.
func TestNameLeadsElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	relay := newRelay(t, w.Standby)
	w.read(w.Primary, relay.url)
	w.wants(true, 0)
	runs, err := w.fromStandby(t.Context(), func(ctx context.Context, db *pgxpool.Pool, onStandby bool) error {
		if !onStandby {
			return nil
		}
		first, err := db.Acquire(ctx)
		if err != nil {
			return err
		}
		relay.lead(config(t, w.Primary).ConnConfig.Host)
		defer first.Release()
		var stillStandby bool
		if err := db.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&stillStandby); err != nil {
			return err
		}
		t.Errorf("a read has connections to two servers: %t", !stillStandby)
		return nil
	})
	if err != nil || runs != 2 {
		t.Errorf("the read ran %d times: %v", runs, err)
	}
}

// A standby that was promoted is not read any more, while the primary goes on.
func TestStandbyIsPromoted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.read(w.Primary, w.Standby)
	w.wants(true, 0)
	promoted := pgtest.Session(t, w.Standby)
	w.exec(promoted, `SELECT pg_promote()`)
	w.exec(promoted, `UPDATE numbers SET n = -1`)
	w.write(1)
	for range 50 {
		w.wants(false, 1)
	}
	w.awaitState("refused")
}

// After a failover, what still follows the primary before is not read, although it has more WAL
// than the new primary.
func TestStandbyOfThePrimaryBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	promoted := pgtest.Session(t, w.Standby)
	w.exec(promoted, `SELECT pg_promote()`)
	w.exec(promoted, `UPDATE numbers SET n = 2`)
	w.RecordGeneration(promoted)
	w.exec(w.db, `CREATE TABLE lost AS SELECT generate_series(1, 100000)`)
	w.Stop(pgtest.PrimaryServer)
	w.BeStandby(pgtest.PrimaryServer)
	w.Start(pgtest.PrimaryServer)
	w.read(w.Standby, w.Primary) // they have changed roles
	w.awaitState("refused")
	for range 50 {
		w.wants(false, 2)
	}
}

// A standby is used once it has replayed what its primary recorded when it became the primary.
func TestGenerationIsReplayedFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	replay := pgtest.Session(t, w.Standby)
	w.exec(replay, `SELECT pg_wal_replay_pause()`)
	w.RecordGeneration(w.db)
	w.read(w.Primary, w.Standby)
	w.awaitState("refused")
	w.exec(replay, `SELECT pg_wal_replay_resume()`)
	w.wants(true, 0)
}

// After a failover, a standby is used once a node has recorded the new primary.
func TestPrimaryIsNotRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(w.db, `UPDATE generations SET timeline = 7`)
	w.read(w.Primary, w.Standby)
	w.awaitState("refused")
	w.RecordGeneration(w.db)
	w.wants(true, 0)
}

// What the standby replays ends a read that stands in its way. The read is repeated.
func TestConflictWithReplay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.read(w.Primary, w.Standby)
	w.wants(true, 0)
	runs, err := w.fromStandby(t.Context(), func(ctx context.Context, db *pgxpool.Pool, onStandby bool) error {
		if !onStandby {
			return nil
		}
		return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT FROM numbers`)
			if err == nil {
				w.exec(w.db, `ALTER TABLE numbers ADD COLUMN more bigint`)
			}
			for err == nil {
				_, err = tx.Exec(ctx, `SELECT`)
			}
			return err
		})
	})
	if err != nil || runs != 2 {
		t.Errorf("the read ran %d times: %v", runs, err)
	}
	w.write(1)
	w.wants(true, 1)
}

// Tables without WAL are not on a standby.
func TestUnloggedTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(w.db, `CREATE UNLOGGED TABLE unlogged AS SELECT 7 AS n`)
	w.read(w.Primary, w.Standby)
	w.wants(true, 0)
	var n int
	runs, err := w.fromStandby(t.Context(), func(ctx context.Context, db *pgxpool.Pool, _ bool) error {
		return db.QueryRow(ctx, `SELECT n FROM unlogged`).Scan(&n)
	})
	if err != nil || n != 7 || runs != 2 {
		t.Errorf("%d after %d runs, %v", n, runs, err)
	}
}

// An account of the standby that may not read everything is not used: every read would run twice.
func TestAccountWithoutRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(w.db, `CREATE ROLE reader; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader`)
	w.awaitReplay()
	asReader, err := url.Parse(w.Standby)
	if err != nil {
		t.Fatal(err)
	}
	query := asReader.Query()
	query.Set("role", "reader") // the server itself admits only its superuser
	asReader.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	w.read(w.Primary, asReader.String())
	w.wants(true, 0)
	w.exec(w.db, `REVOKE SELECT ON numbers FROM reader`)
	w.awaitState("refused")
	repeated := w.metric("mlsd_reads_repeated_total", "")
	for range 10 {
		w.number()
	}
	if got := w.metric("mlsd_reads_repeated_total", ""); got != repeated {
		t.Errorf("%v reads were repeated since the standby was refused", got-repeated)
	}
	err = standby.Check(t.Context(), config(t, w.Primary).ConnConfig, config(t, asReader.String()).ConnConfig)
	if !errors.Is(err, standby.ErrNoRights) || !strings.Contains(err.Error(), "numbers") {
		t.Errorf("got %v", err)
	}
	if lines := strings.Count(w.log.String(), "may not read"); lines != 1 {
		t.Errorf("the log says so %d times:\n%s", lines, w.log.String())
	}
}

// An error of the read itself is answered, and the read is not repeated.
func TestErrorsOfReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.read(w.Primary, w.Standby)
	w.wants(true, 0)
	refused := errors.New("refused")
	runs, err := w.fromStandby(t.Context(), func(context.Context, *pgxpool.Pool, bool) error { return refused })
	if !errors.Is(err, refused) || runs != 1 {
		t.Errorf("the read ran %d times: %v", runs, err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other, err := url.Parse(w.Standby)
	if err != nil {
		t.Fatal(err)
	}
	other.Path = "/postgres"
	for _, tt := range []struct {
		name, url string
		want      error
	}{
		{"its standby", w.Standby, nil},
		{"another database of its standby", other.String(), standby.ErrOther},
		{"another PostgreSQL", pgtest.URL(t), standby.ErrOther},
		{"the primary itself", w.Primary, standby.ErrNotStandby},
	} {
		err := standby.Check(t.Context(), config(t, w.Primary).ConnConfig, config(t, tt.url).ConnConfig)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// relay passes on the bytes between clients and a server. It can hang.
type relay struct {
	url string

	mu     sync.Mutex    // guards what follows
	host   string        // directory of the server's socket
	passes chan struct{} // closed while it does not hang
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay-")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{host: config(t, target).ConnConfig.Host, passes: make(chan struct{})}
	close(r.passes)
	listener, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("host", dir)
	u.RawQuery = q.Encode()
	r.url = u.String()
	t.Cleanup(func() {
		if err := errors.Join(listener.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			r.mu.Lock()
			host := r.host
			r.mu.Unlock()
			server, err := net.Dial("unix", filepath.Join(host, ".s.PGSQL.5432"))
			if err != nil {
				_ = client.Close() // the client sees it
				continue
			}
			go r.pass(server, client)
			go r.pass(client, server)
		}
	}()
	return r
}

// pass copies until one side ends, and then ends the other.
func (r *relay) pass(to, from net.Conn) {
	defer func() { _ = to.Close() }() // the other direction has possibly closed it
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		passes := r.passes
		r.mu.Unlock()
		<-passes
		if _, writeErr := to.Write(buf[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

// lead makes new connections lead to another server.
func (r *relay) lead(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.host = host
}

func (r *relay) hang() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passes = make(chan struct{})
}

func (r *relay) goOn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.passes)
}
