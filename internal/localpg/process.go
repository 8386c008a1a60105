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

// How long a server that was told to stop at once (SIGQUIT) may take. The postmaster itself kills backends that have not
// gone after five seconds.
const immediateStop = 10 * time.Second

// process is a child that is waited for from its start.
type process struct {
	cmd      *exec.Cmd
	done     chan struct{} // closed once it has been waited for
	err      error         // how it ended; read after done
	stopping atomic.Bool   // we asked for the end
}

// startProcess starts a child from a goroutine that keeps its thread until the child has ended: the kernel sends the parent-death
// signal when the forking *thread* ends, and Go ends idle threads as it likes. The thread is never unlocked; it goes with
// the goroutine.
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

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// exitError says how an ended process ended. Shutting down immediately at our request is not a failure, though PostgreSQL calls it one.
func (p *process) exitError() error {
	if p.err == nil || p.stopping.Load() {
		return nil
	}
	return fmt.Errorf("PostgreSQL (pid %d) ended by itself: %w", p.pid(), p.err)
}

// stop ends a postmaster: fast, and once ctx ends immediately. It returns an error if it still runs.
func (p *process) stop(ctx context.Context) error {
	if p.ended() {
		return nil
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
	timeout := time.NewTimer(immediateStop)
	defer timeout.Stop()
	select {
	case <-p.done:
		return nil
	case <-timeout.C:
		return fmt.Errorf("pid %d did not end %v after SIGQUIT", p.pid(), immediateStop)
	}
}

func (p *process) signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil // about to close done
	}
	return err
}
