package localpg

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/testdir"
)

// A backup that is made while rows are written has all rows from before it, and no half of a
// transaction.
func TestBackupWhileRunning(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	s := start(t, Config{DataDir: dir})
	mustStore(t, s)
	mustExec(t, s, `CREATE TABLE a (n bigint PRIMARY KEY); CREATE TABLE b (n bigint PRIMARY KEY)`)
	ctx, cancel := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() {
		written <- query(t.Context(), s, func(conn *pgx.Conn) error {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := conn.Exec(t.Context(), `WITH one AS (INSERT INTO a VALUES ($1)) INSERT INTO b VALUES ($1)`,
					n); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	backup := filepath.Join(testdir.For(t), "backup")
	m, err := Backup(t.Context(), dir, backup)
	cancel()
	if err := errors.Join(err, <-written); err != nil {
		t.Fatal(err)
	}
	if m.FirstWAL == "" || !m.Ended.After(m.Began) || m.Major < MinMajor {
		t.Errorf("the manifest is %+v", m)
	}
	if _, err := Backup(t.Context(), dir, backup); err == nil {
		t.Error("a backup is made over another one")
	}
	stop(t, s)

	again := dataDir(t)
	if _, err := restoreTo(t, Config{DataDir: again}, backup, Target{}); err != nil {
		t.Fatal(err)
	}
	s = start(t, Config{DataDir: again})
	if n := stored(t, s); n != 1 {
		t.Errorf("%d rows, want one", n)
	}
	var broken, timeline int
	err = query(t.Context(), s, func(conn *pgx.Conn) error {
		return conn.QueryRow(t.Context(), `
			SELECT (SELECT count(*) FROM a FULL JOIN b USING (n) WHERE a IS NULL OR b IS NULL), timeline_id FROM
				pg_control_checkpoint()`).
			Scan(&broken, &timeline)
	})
	if err != nil || broken != 0 || timeline != 2 {
		t.Errorf("%d halves of transactions, timeline %d, %v", broken, timeline, err)
	}
	if _, err := restoreTo(t, Config{DataDir: dir}, backup, Target{}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("restored over a database: %v", err)
	}
}

// A restore that root types leaves the service nothing that the service may not open.
func TestRestoreAsRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := usedDir(t)
	s := start(t, Config{DataDir: dir})
	backup := filepath.Join(testdir.For(t), "backup")
	if _, err := Backup(t.Context(), dir, backup); err != nil {
		t.Fatal(err)
	}
	stop(t, s)
	again := dataDir(t)
	service, err := chooseAccount(again, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(again, 0o700), service.own(again)); err != nil {
		t.Fatal(err)
	}
	if _, err := restoreTo(t, Config{DataDir: again}, backup, Target{}); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(again, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != service.uid {
			t.Errorf("%s belongs to uid %d, want %d", path, owner.Uid, service.uid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// With an archive a backup is restored to any later moment. The new timeline is archived too: a
// restored server can be restored again.
func TestRestoreToAMoment(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	archive := filepath.Join(filepath.Dir(dir), `the "WAL" of 100% o'clock`)
	s := start(t, Config{DataDir: dir, Archive: archive})
	mustStore(t, s)
	backup := filepath.Join(testdir.For(t), "backup")
	m, err := Backup(t.Context(), dir, backup)
	if err != nil {
		t.Fatal(err)
	}
	moments := []time.Time{m.Ended}
	for range 3 {
		mustStore(t, s)
		moments = append(moments, clock(t, s))
	}
	stop(t, s)

	restored := func(target Target, want int) (dir string) {
		t.Helper()
		dir = dataDir(t)
		_, err := restoreAndLook(t, Config{DataDir: dir, Archive: archive}, backup, target, func(s *Server) {
			if n := stored(t, s); n != want {
				t.Errorf("%+v: %d rows, want %d", target, n, want)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	restored(Target{To: moments[0]}, 1)
	var timelines *TimelinesError
	if _, err := restoreTo(t, Config{DataDir: dataDir(t), Archive: archive}, backup, Target{}); !errors.As(err,
		&timelines) ||
		timelines.Backup != 1 || len(timelines.Later) != 1 || timelines.Later[0] != 2 {
		t.Errorf("with another timeline in the archive: %v", err)
	}
	s = start(t, Config{DataDir: restored(Target{To: moments[2], Timeline: 1}, 3), Archive: archive})
	mustStore(t, s) // on timeline 3
	mustStore(t, s)
	stop(t, s)
	restored(Target{Timeline: 3}, 5)
	restored(Target{Timeline: 1}, 4)

	for name, c := range map[string]struct {
		to   time.Time
		want string
	}{
		"before the backup": {m.Ended.Add(-time.Second), "take an older backup"},
		"after the WAL":     {time.Now().Add(time.Hour), "recovery ended before configured recovery target was reached"},
	} {
		dir := dataDir(t)
		if _, err := restoreTo(t, Config{DataDir: dir, Archive: archive}, backup,
			Target{To: c.to, Timeline: 1}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		left, err := filepath.Glob(filepath.Join(dir, "postgres*"))
		if err != nil || len(left) > 1 { // the lock's file stays
			t.Errorf("%s: %q is left, %v", name, left, err)
		}
	}
}

// What is no complete backup is refused. A preparation that fails leaves an empty directory.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	start(t, Config{DataDir: dir})
	backup := filepath.Join(testdir.For(t), "backup")
	if _, err := Backup(t.Context(), dir, backup); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	empty := dataDir(t)
	_, err := Restore(t.Context(), Config{DataDir: empty, Settings: quick(), download: noDownload}, backup, Target{},
		func(context.Context, *Server) error { return refused })
	if !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(empty, "postgres")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a cluster was made: %v", err)
	}
	if _, err := restoreTo(t, Config{DataDir: empty, Archive: filepath.Join(empty, "none")}, backup,
		Target{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the archive: %v", err)
	}
	if err := os.Truncate(filepath.Join(backup, clusterTar), 1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := restoreTo(t, Config{DataDir: empty}, backup, Target{}); err == nil ||
		!strings.Contains(err.Error(), "has 1048576 bytes") {
		t.Errorf("a truncated backup: %v", err)
	}
	if err := os.Remove(filepath.Join(backup, manifestName)); err != nil {
		t.Fatal(err)
	}
	if _, err := restoreTo(t, Config{DataDir: empty}, backup, Target{}); err == nil ||
		!strings.Contains(err.Error(), "no complete backup") {
		t.Errorf("an interrupted backup: %v", err)
	}
	if _, err := Backup(t.Context(), empty, filepath.Join(t.TempDir(), "b")); !errors.Is(err, ErrNotRunning) {
		t.Errorf("of no server: %v", err)
	}
}

func restoreTo(t *testing.T, cfg Config, backup string, target Target) (time.Time, error) {
	t.Helper()
	return restoreAndLook(t, cfg, backup, target, func(*Server) {})
}

// restoreAndLook restores a backup, and looks at the server before the cluster gets its name.
func restoreAndLook(t *testing.T, cfg Config, backup string, target Target, look func(*Server)) (time.Time, error) {
	t.Helper()
	cfg.Settings, cfg.download = quick(), noDownload
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	return Restore(ctx, cfg, backup, target, func(_ context.Context, s *Server) error {
		look(s)
		return nil
	})
}

func mustExec(t *testing.T, s *Server, sql string) {
	t.Helper()
	err := query(t.Context(), s, func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), sql)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// clock returns the server's time.
func clock(t *testing.T, s *Server) (now time.Time) {
	t.Helper()
	err := query(t.Context(), s, func(conn *pgx.Conn) error {
		return conn.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now)
	})
	if err != nil {
		t.Fatal(err)
	}
	return now
}
