package localpg

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	for want := 1; want <= 3; want++ {
		s := start(t, Config{DataDir: dir})
		mustStore(t, s)
		if got := stored(t, s); got != want {
			t.Errorf("%d rows, want %d", got, want)
		}
		stop(t, s)
		if err := s.child.exitError(); err != nil {
			t.Errorf("Err after Stop: %v", err)
		}
		if !none(t, dir) {
			t.Error("processes are left after Stop")
		}
	}
}

func TestServerIsPrivate(t *testing.T) {
	t.Parallel()
	s := start(t, Config{DataDir: dataDir(t),
		Settings: map[string]string{"fsync": "off", "listen_addresses": "*", "port": "1"}})
	mustStore(t, s)
	info, err := os.Stat(s.socketDir)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o700 {
		t.Errorf("socket directory has mode %o", got)
	}
	got := map[string]string{}
	err = query(t.Context(), s, func(conn *pgx.Conn) error {
		rows, err := conn.Query(t.Context(), `
			SELECT name, setting FROM pg_settings
			WHERE name IN ('listen_addresses', 'port', 'server_encoding', 'data_checksums')
			UNION ALL SELECT 'collate', datcollate FROM pg_database WHERE datname = current_database()
			UNION ALL SELECT DISTINCT 'hba ' || type, auth_method FROM pg_hba_file_rules`)
		if err != nil {
			return err
		}
		var name, value string
		_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error { got[name] = value; return nil })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"listen_addresses": "", "port": port, "server_encoding": "UTF8", "data_checksums": "on", "collate": "C",
		"hba local": "peer", "hba host": "reject",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	o := launchOwner(t, dir, nil)
	o.ready(t)
	_, err := Start(t.Context(), Config{DataDir: dir, download: noDownload})
	var inUse *InUseError
	if !errors.As(err, &inUse) {
		t.Fatalf("Start: %v", err)
	}
	if diff := cmp.Diff(&InUseError{Dir: dir, PID: o.cmd.Process.Pid}, inUse); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	o.finish(t)
	if s := start(t, Config{DataDir: dir}); stored(t, s) != 1 {
		t.Error("the owner's row is gone")
	}
}

func TestEnsureDatabase(t *testing.T) {
	t.Parallel()
	s := start(t, Config{DataDir: usedDir(t)})
	for range 2 {
		if err := s.EnsureDatabase(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestStopTwiceAndInAHurry(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	s := start(t, Config{DataDir: dir})
	mustStore(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no time: immediate shutdown
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := s.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s := start(t, Config{DataDir: dir}); stored(t, s) != 1 {
		t.Error("an immediate shutdown lost a row")
	}
}

func TestStartIsCancelled(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	stop(t, start(t, Config{DataDir: dir}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	download := func(context.Context, int, string) error {
		t.Error("a cancelled start went on to download")
		return nil
	}
	if _, err := Start(ctx, Config{DataDir: dir, download: download}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start: %v", err)
	}
	if !none(t, dir) {
		t.Error("a process is left")
	}
	start(t, Config{DataDir: dir})
}

func TestServerThatDoesNotStart(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	_, err := Start(t.Context(),
		Config{DataDir: dir, Settings: map[string]string{"fsync": "off", "no_such_setting": "1"}, download: noDownload})
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("Start: %v", err)
	}
	start(t, Config{DataDir: dir})
}

func TestForeignDirectoryIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	file := filepath.Join(dir, "postgres", "precious")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Config{DataDir: dir, download: noDownload}); err == nil ||
		!strings.Contains(err.Error(), "left alone") {
		t.Errorf("Start: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
