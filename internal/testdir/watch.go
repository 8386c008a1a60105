package testdir

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// watchScript waits until its standard input ends. The input ends when the process with the other
// end of the pipe ends, even by a crash. Then the script waits until the server has stopped, ten
// seconds at most. Then it removes the directory and its lock file.
const watchScript = `
cat >/dev/null
i=0
while [ -e "$1/postgres/postmaster.pid" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
rm -rf "$1" "$1.lock"
`

// removeAtExit starts a helper that removes dir when this process has ended. A test binary ends by
// os.Exit or a signal, and so cannot remove dir itself. The helper waits until the returned file is
// closed. The caller must not close the file. The file is close-on-exec, so that no other child
// holds it open.
func removeAtExit(dir string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	cmd := exec.Command("/bin/sh", "-c", watchScript, "sh", dir)
	cmd.Dir = "/"
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the helper does not get a ^C
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), r.Close(), w.Close())
	}
	return w, r.Close()
}

// lockFile opens a file and locks it with flock. how is LOCK_EX, with or without LOCK_NB.
func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// abandoned reports whether the server that wrote postmaster.pid in dir has ended.
func abandoned(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err != nil {
		return true
	}
	line, _, _ := strings.Cut(string(data), "\n")
	pid, err := strconv.Atoi(line)
	return err != nil || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
