package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// killLimit is how long killed processes may take to end.
const killLimit = 10 * time.Second

// freeze stops all its processes where they are.
func (m *Postmaster) freeze() error { return m.signalAll(syscall.SIGSTOP) }

// kill ends all its processes at once with SIGKILL, frozen ones as well, and waits for the end.
func (m *Postmaster) kill() error {
	select {
	case <-m.done:
		return nil
	default:
	}
	if err := m.signalAll(syscall.SIGKILL); err != nil {
		return err
	}
	timer := time.NewTimer(killLimit)
	defer timer.Stop()
	select {
	case <-m.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("PostgreSQL: still running %s after SIGKILL", killLimit)
	}
}

// signalAll signals the server and its children. The server is stopped first, so that it starts no
// others.
func (m *Postmaster) signalAll(signal syscall.Signal) error {
	pid := m.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	children, err := childrenOf(pid)
	if err != nil {
		return fmt.Errorf("PostgreSQL: find its processes: %w", err)
	}
	for _, pid := range append(children, pid) {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("PostgreSQL: process %d: %w", pid, err)
		}
	}
	return nil
}

// childrenOf returns the children of a process. It needs Linux's /proc.
func childrenOf(parent int) (children []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		// The name is in brackets and can contain anything. After it come the state and the parent.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		children = append(children, pid)
	}
	if len(children) == 0 {
		return nil, errors.New("/proc lists none") // every PostgreSQL has some
	}
	return children, nil
}
