package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// immediateStop is the longest time of an immediate shutdown (SIGQUIT). The postmaster kills
// backends that still run after five seconds.
const immediateStop = 10 * time.Second

// process is a child process. A goroutine waits for its end.
type process struct {
	cmd      *exec.Cmd
	done     chan struct{} // closed when the child has ended
	err      error         // the result of Wait; valid after done is closed
	stopping atomic.Bool   // stop was called
}

// startProcess starts a child from a goroutine that is locked to its thread until the child has
// ended. The kernel sends the parent-death signal when the forking *thread* ends, and Go can end an
// idle thread at any time. The thread is never unlocked: it ends with the goroutine.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// runChild starts a short-lived child and waits for its end.
func runChild(cmd *exec.Cmd) error {
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	<-p.done
	return p.err
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// exitError returns how a process ended. An immediate shutdown after stop is not a failure,
// although PostgreSQL exits with a status other than 0.
func (p *process) exitError() error {
	if p.err == nil || p.stopping.Load() {
		return nil
	}
	return fmt.Errorf("PostgreSQL (pid %d) ended by itself: %w", p.pid(), p.err)
}

// stop ends a postmaster with a fast shutdown. When ctx ends, it asks for an immediate shutdown. If
// the postmaster still runs after that, stop returns an error.
func (p *process) stop(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	p.stopping.Store(true)
	if err := p.signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	if err := p.signal(syscall.SIGQUIT); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(immediateStop):
		return fmt.Errorf("pid %d did not end %v after SIGQUIT", p.pid(), immediateStop)
	}
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil // if the process has ended, p.done is closed soon
}
