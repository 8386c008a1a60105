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
	PID int // the owner's; 0 if it has not written it yet
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

// acquireLock makes this process the owner of dir. It returns [*InUseError] without waiting if
// another process is the owner. Children do not inherit the lock, because Go opens files
// close-on-exec.
func acquireLock(dir string) (*lockFile, error) {
	path := filepath.Join(dir, "postgres.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := flock(f); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = &InUseError{Dir: dir, PID: readPID(path)}
		} else {
			err = fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	if err := writePID(f); err != nil {
		return nil, errors.Join(fmt.Errorf("write lock file: %w", err), f.Close())
	}
	return &lockFile{f: f}, nil
}

// writePID writes the pid of this process, for the errors of other processes.
func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// flock takes an exclusive lock without waiting. It repeats the call after an interrupt by a
// signal.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// release releases the lock. It unlocks before it closes: a child that is forked and has not yet
// called exec has a copy of the open file, and with it the lock, for a moment longer than this
// process.
func (l *lockFile) release() error {
	return errors.Join(syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN), l.f.Close())
}

// readPID returns the process id in a file's first line, or 0 if there is none.
func readPID(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(data), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return 0
	}
	return max(pid, -pid) // a single-user server writes its pid negative
}
