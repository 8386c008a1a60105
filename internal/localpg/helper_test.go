package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/testdir"
)

// deadline is the longest wait in these tests. Normally all waits are much shorter.
const deadline = 60 * time.Second

// helperEnv is the environment variable that makes this test binary a process with a server. Its
// value is the data directory, or "default".
const helperEnv = "LOCALPG_TEST_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		os.Exit(helper(dir))
	}
	if err := provide(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "PostgreSQL for the tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// provide makes an installed PostgreSQL available to this process and its children. On a machine
// without one it downloads one, once for all test runs. The tests themselves download nothing.
func provide(ctx context.Context) error {
	dir := filepath.Join(os.TempDir(), "mlsd-localpg-"+strconv.Itoa(os.Geteuid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	a, err := chooseAccount(dir, false)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	f := &finder{
		installed: InstalledDirs(), downloads: filepath.Join(dir, "pgbin"),
		download: downloader(mavenCentral, pinned, log, nil), log: log, account: a,
	}
	b, err := f.find(ctx, 0)
	if err != nil {
		return err
	}
	return os.Setenv("PATH", b.dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// helper starts a server in dir, stores a row, and prints one line: "ready <pid of the server>" or
// "failed <error>". Then it waits until it is killed. When its input ends, it stops the server in
// order.
func helper(dir string) int {
	pid, stop, err := own(context.Background(), dir)
	if err != nil {
		fmt.Printf("failed %q\n", err)
		return 1
	}
	fmt.Printf("ready %d\n", pid)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return 1
	}
	if err := stop(context.Background()); err != nil {
		return 1
	}
	return 0
}

func own(ctx context.Context, dir string) (pid int, stop func(context.Context) error, err error) {
	if dir == "default" {
		if dir, err = DefaultDataDir(); err != nil {
			return 0, nil, err
		}
	}
	cfg := Config{DataDir: dir, Settings: quick(), download: noDownload}
	if bin := os.Getenv(helperEnv + "_BIN"); bin != "" {
		cfg.installed = []string{bin}
	}
	s, err := Start(ctx, cfg)
	if err != nil {
		return 0, nil, err
	}
	return s.PID(), s.Stop, store(ctx, s)
}

// quick returns fast settings. They are not safe if the machine crashes.
func quick() map[string]string {
	return map[string]string{"fsync": "off", "shared_buffers": "16MB", "max_connections": "20"}
}

// dataDir names a data directory that does not exist. The server's account can enter its parent.
func dataDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(testdir.For(t), "mlsd")
}

// programDir names a directory for programs, like dataDir. In memory they possibly cannot run.
func programDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "mlsd")
}

// usedDir returns a data directory with a cluster, for tests that are not about making one.
func usedDir(t *testing.T) string {
	t.Helper()
	dir := dataDir(t)
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	err := testdir.Copy("cluster", dir, func(dir string) error {
		s, err := Start(context.Background(), Config{DataDir: dir, Settings: quick(), download: noDownload})
		if err != nil {
			return err
		}
		return s.Stop(context.Background())
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// start starts a server. The end of the test stops it.
func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	if cfg.Settings == nil {
		cfg.Settings = quick()
	}
	if cfg.download == nil {
		cfg.download = noDownload
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	s, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil && s.child.stopping.Load() {
			t.Error(err)
		}
	})
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// store commits one more row.
func store(ctx context.Context, s *Server) error {
	if err := s.EnsureDatabase(ctx); err != nil {
		return err
	}
	return query(ctx, s, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `CREATE TABLE IF NOT EXISTS kept (n int); INSERT INTO kept SELECT count(*) FROM kept`)
		return err
	})
}

// stored returns the number of rows.
func stored(t *testing.T, s *Server) (n int) {
	t.Helper()
	err := query(t.Context(), s, func(conn *pgx.Conn) error {
		return conn.QueryRow(t.Context(), `SELECT count(*) FROM kept`).Scan(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func mustStore(t *testing.T, s *Server) {
	t.Helper()
	if err := store(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

func query(ctx context.Context, s *Server, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.ConnString(Database))
	if err != nil {
		return err
	}
	if err := do(conn); err != nil {
		return fmt.Errorf("%w (close: %v)", err, conn.Close(ctx))
	}
	return conn.Close(ctx)
}

// none reports whether no process of the cluster in the data directory runs. Elsewhere than on
// Linux only the postmaster is seen.
func none(t *testing.T, dir string) bool {
	t.Helper()
	cluster := filepath.Join(dir, "postgres")
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && cwd == cluster {
			return false
		}
	}
	return !isPostmaster(runningPID(t, dir), cluster)
}

// runningPID returns the pid in the postmaster.pid of the data directory, or 0.
func runningPID(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return pidIn(text)
}
