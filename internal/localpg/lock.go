package localpg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// InUseError means that another process owns the data directory.
type InUseError struct {
	Dir string
	PID int // the owner's pid; 0 if the owner has not written it yet
}

func (e *InUseError) Error() string {
	owner := "another process"
	if e.PID != 0 {
		owner = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("data directory %s is in use by %s; stop it, or use another directory", e.Dir, owner)
}

// lockFile is a file with an flock that this process holds until it ends. The kernel releases the
// lock with the process, also after a crash. The file is never removed: otherwise two processes
// could lock two different files of the same name.
type lockFile struct {
	f *os.File
}

// lock locks a file without waiting. The error is EWOULDBLOCK if another process holds the lock.
// Children do not inherit the lock, because Go opens files close-on-exec.
func lock(path string) (*lockFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return &lockFile{f}, nil
}

// acquireLock makes this process the owner of dir. It returns [*InUseError] without waiting if
// another process is the owner. The lock's file contains the pid, for the errors of other
// processes.
func acquireLock(dir string) (*lockFile, error) {
	path := filepath.Join(dir, "postgres.lock")
	l, err := lock(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		text, _ := os.ReadFile(path) // without a text, the pid is 0: not known
		return nil, &InUseError{Dir: dir, PID: pidIn(text)}
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(l.ownAs(dir), l.write(strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("write lock file: %w", err), l.release())
	}
	return l, nil
}

// ownAs gives a file of root's to the owner of dir. Otherwise a command that root types would shut
// out the service, which runs as the owner of dir.
func (l *lockFile) ownAs(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		return l.f.Chown(int(owner.Uid), int(owner.Gid))
	}
	return nil
}

// write replaces the text of the file.
func (l *lockFile) write(text string) error {
	if err := l.f.Truncate(0); err != nil {
		return err
	}
	_, err := l.f.WriteAt([]byte(text), 0)
	return err
}

// release releases the lock. It unlocks before it closes. Otherwise a child that is forked, and has
// not yet called exec, would keep the lock for a moment, with its copy of the open file.
func (l *lockFile) release() error {
	return errors.Join(syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN), l.f.Close())
}

// pidIn returns the process id in the first line of a text, or 0 if there is none.
func pidIn(text []byte) int {
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return 0
	}
	return max(pid, -pid) // a single-user server writes its pid negative
}
