package localpg

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"mlsd/internal/await"

	"github.com/google/go-cmp/cmp"
)

// PostgreSQL refuses to start if another process, or a zombie, has the pid in postmaster.pid.
func TestReusedPID(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"other":  {"/bin/sleep", "1000"},
		"zombie": {"/bin/sh", "-c", "exit 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := usedDir(t)
			s := start(t, Config{DataDir: dir})
			mustStore(t, s)
			clusterDir := filepath.Join(dir, "postgres")
			a, err := chooseAccount(clusterDir, true)
			if err != nil {
				t.Fatal(err)
			}
			cmd := a.command(t.Context(), args[0], clusterDir, args[1:]...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill() // the zombie has already ended
				_ = cmd.Wait()
			})
			if name == "zombie" {
				await.Until(t, "the child is a zombie", func() bool { return zombie(t, cmd) })
			}
			pidFile := filepath.Join(clusterDir, "postmaster.pid")
			data, err := os.ReadFile(pidFile)
			if err != nil {
				t.Fatal(err)
			}
			socketDir := s.socketDir
			stop(t, s)
			stale := strings.Replace(string(data), strconv.Itoa(s.PID()), strconv.Itoa(cmd.Process.Pid), 1)
			putFile(t, a, pidFile, stale)
			if err := os.Mkdir(socketDir, 0o700); err != nil {
				t.Fatal(err)
			}
			putFile(t, a, filepath.Join(socketDir, socketName+".lock"), stale)
			if s := start(t, Config{DataDir: dir}); stored(t, s) != 1 {
				t.Error("a row is lost")
			}
		})
	}
}

func zombie(t *testing.T, cmd *exec.Cmd) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", itoa(cmd.Process.Pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.HasPrefix(strings.TrimSpace(string(out)), "Z")
}

// On a system without parent-death signals, a killed mlsd leaves a server without an owner.
func TestOrphanIsStopped(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	orphan := start(t, Config{DataDir: dir})
	mustStore(t, orphan)
	if err := orphan.lock.release(); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{DataDir: dir})
	select {
	case <-orphan.Done():
	default:
		t.Error("the orphan runs")
	}
	if stored(t, s) != 1 {
		t.Error("a row is lost")
	}
	orphan.stopOnce.Do(func() {}) // its lock and socket directory now belong to the new server
}

func TestWrongVersionIsLeftUntouched(t *testing.T) {
	t.Parallel()
	dir := usedDir(t)
	s := start(t, Config{DataDir: dir})
	mustStore(t, s)
	stop(t, s)
	file := filepath.Join(dir, "postgres", "PG_VERSION")
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, filepath.Join(dir, "postgres"))
	_, err = Start(t.Context(), Config{DataDir: dir, download: noDownload})
	var version *VersionError
	if !errors.As(err, &version) || version.Cluster != 99 || len(version.Found) == 0 {
		t.Errorf("Start: %v", err)
	}
	if diff := cmp.Diff(before, snapshot(t, filepath.Join(dir, "postgres"))); diff != "" {
		t.Errorf("the cluster changed (-before +after)\n%s", diff)
	}
	if err := os.WriteFile(file, was, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := start(t, Config{DataDir: dir}); stored(t, s) != 1 {
		t.Error("a row is lost")
	}
}

// snapshot describes every file below dir.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files[path] = info.Mode().String() + " " + strconv.FormatInt(info.Size(), 10) + " " + info.ModTime().String()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// putFile writes a file that the account owns.
func putFile(t *testing.T, a *account, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if a.cred == nil {
		return
	}
	if err := os.Chown(path, int(a.uid), int(a.gid)); err != nil {
		t.Fatal(err)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
