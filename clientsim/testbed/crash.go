package testbed

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"mlsd/internal/errs"
)

// killLimit is how long killed processes may take to end.
const killLimit = 10 * time.Second

// freeze stops all its processes where they are.
func (m *Postmaster) freeze() error { return m.signalAll(syscall.SIGSTOP) }

// kill ends all its processes at once with SIGKILL, frozen ones as well, and waits for the end.
func (m *Postmaster) kill() error {
	if m.exited() {
		return nil
	}
	if err := m.signalAll(syscall.SIGKILL); err != nil {
		return err
	}
	return m.await(killLimit)
}

// signalAll signals the server and its children. The server is stopped first, so that it starts no
// others.
func (m *Postmaster) signalAll(signal syscall.Signal) error {
	pid := m.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	children := childrenOf(pid)
	if len(children) == 0 { // every PostgreSQL has some
		return errors.New("PostgreSQL: /proc lists none of its processes")
	}
	var failed error
	for pid := range children {
		failed = errors.Join(failed, Signal(pid, signal))
	}
	return errs.Wrap(errors.Join(failed, Signal(pid, signal)), "PostgreSQL")
}

// Signal signals a process, unless it has ended.
func Signal(pid int, s syscall.Signal) error {
	if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	return nil
}
