package pgtest

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

// watchScript waits for its standard input to end, which is when the process that holds the other end does, however it ends;
// then for the server to have stopped (ten seconds at most), and removes the directory and its lock file.
const watchScript = `
cat >/dev/null
i=0
while [ -e "$1/postgres/postmaster.pid" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
rm -rf "$1" "$1.lock"
`

// removeAtExit starts a helper that removes dir when this process has ended. A test binary has no other way: it ends by os.Exit or a
// signal. The helper waits for the end of the file returned, which the caller keeps; it is close-on-exec, so no other child
// keeps it open.
func removeAtExit(dir string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	cmd := exec.Command("/bin/sh", "-c", watchScript, "sh", dir)
	cmd.Dir = "/"
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a ^C is for us, not for it
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), r.Close(), w.Close())
	}
	return w, r.Close()
}

// lockFile opens a file and locks it with flock; how is LOCK_EX, with LOCK_NB or not.
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

// abandoned says whether the server that wrote postmaster.pid in dir is gone.
func abandoned(dir string) bool {
	data, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err != nil {
		return true
	}
	line, _, _ := strings.Cut(string(data), "\n")
	pid, err := strconv.Atoi(line)
	return err != nil || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
