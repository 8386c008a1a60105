package localpg

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"mlsd/internal/await"

	"github.com/jackc/pgx/v5"
)

func TestKilledPostmaster(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	s := start(t, Config{DataDir: dir})
	mustStore(t, s)
	if err := syscall.Kill(s.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.child.exitError(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Err: %v", err)
	}
	if err := s.Stop(t.Context()); err == nil {
		t.Error("Stop does not tell that the server died")
	}
	if s := start(t, Config{DataDir: dir}); stored(t, s) != 1 {
		t.Error("a committed row is lost")
	}
}

func linuxOnly(t *testing.T, reason string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip(reason)
	}
}

// A busy backend does not notice that its postmaster ended. The next server must not start while it
// runs.
func TestBackendOutlivesPostmaster(t *testing.T) {
	t.Parallel()
	linuxOnly(t, "elsewhere PostgreSQL's own interlock does this")
	dir := usedDir(t)
	s := start(t, Config{DataDir: dir})
	mustStore(t, s)
	conn, err := pgx.Connect(t.Context(), s.ConnString(Database))
	if err != nil {
		t.Fatal(err)
	}
	backend := int(conn.PgConn().PID())
	busy := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), `
			DO $$ DECLARE until timestamptz := clock_timestamp() + '2s'; BEGIN
				PERFORM pg_advisory_lock(1);
				WHILE clock_timestamp() < until LOOP END LOOP;
			END $$`)
		busy <- err
	}()
	await.Until(t, "the backend is busy", func() bool {
		var locked bool
		err := query(t.Context(), s, func(conn *pgx.Conn) error {
			return conn.QueryRow(t.Context(), `SELECT NOT pg_try_advisory_lock(1)`).Scan(&locked)
		})
		return err == nil && locked
	})
	if err := syscall.Kill(s.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Stop(t.Context()); err == nil {
		t.Error("Stop does not tell that the server died")
	}
	if none(t, dir) {
		t.Fatal("the backend did not outlive its postmaster: this test tests nothing")
	}
	s = start(t, Config{DataDir: dir})
	if isPostgresIn(backend, dir) {
		t.Error("the new server runs beside an old backend")
	}
	<-busy // with or without an error: the loop may have ended by itself
	if stored(t, s) != 1 {
		t.Error("a committed row is lost")
	}
}

func isPostgresIn(pid int, dir string) bool {
	cwd, err := os.Readlink(filepath.Join("/proc", itoa(pid), "cwd"))
	return err == nil && cwd == filepath.Join(dir, "postgres")
}

func TestKilledOwnerLeavesNoServer(t *testing.T) {
	t.Parallel()
	linuxOnly(t, "elsewhere the next start stops the server")
	dir := usedDir(t)
	o := launchOwner(t, dir, nil)
	o.ready(t)
	o.kill(t)
	await.Until(t, "the server went with its owner", func() bool { return none(t, dir) })
	if s := start(t, Config{DataDir: dir}); stored(t, s) != 1 {
		t.Error("a committed row is lost")
	}
}

func TestStartRightAfterOwnerIsKilled(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	for want := 1; want <= 3; want++ {
		o := launchOwner(t, dir, nil)
		o.ready(t)
		o.kill(t)
	}
	if s := start(t, Config{DataDir: dir}); stored(t, s) != 3 {
		t.Error("committed rows are lost")
	}
}

func TestKilledDuringInitdb(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	bin := scripts(t, map[string]string{
		"postgres": `exec "$REAL/postgres" "$@"`,
		"initdb": `"$REAL/initdb" "$@" >/dev/null; trap '' INT; echo half >"$2/half"; while [ -e "$2/half" ]; do sleep ` +
			`0.1; done`,
	})
	o := launchOwner(t, dir, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, helperEnv+"_BIN="+bin) })
	var half []string
	await.Until(t, "initdb is at work", func() bool {
		var err error
		half, err = filepath.Glob(filepath.Join(dir, initPrefix+"*", "half"))
		if err != nil {
			t.Fatal(err)
		}
		return len(half) == 1
	})
	o.kill(t)
	if _, err := os.Stat(filepath.Join(dir, "postgres")); !os.IsNotExist(err) {
		t.Errorf("half a cluster is in place: %v", err)
	}
	mustStore(t, start(t, Config{DataDir: dir}))
	if left, err := filepath.Glob(filepath.Join(dir, initPrefix+"*")); err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestFailingInitdb(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	bin := scripts(t, map[string]string{
		"postgres": `exec "$REAL/postgres" "$@"`,
		"initdb":   `echo half >"$2/half"; echo "no space left" >&2; exit 3`,
	})
	_, err := Start(t.Context(), Config{DataDir: dir, installed: []string{bin}, download: noDownload})
	if err == nil || !strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("Start: %v", err)
	}
	// Only the lock file remains.
	if left, err := filepath.Glob(filepath.Join(dir, "postgres*")); err != nil || len(left) != 1 {
		t.Errorf("left over: %v, %v", left, err)
	}
	start(t, Config{DataDir: dir})
}
