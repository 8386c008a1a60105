package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/clientsim/xrpc"
)

// Postmaster is the private PostgreSQL of a server of ours, running without that server. So it can
// be restarted while other servers use it.
type Postmaster struct {
	args    []string // its command line
	owner   *syscall.Stat_t
	sockets string // directory that it needs; "": none
	url     string
	log     *lastLines

	cmd        *exec.Cmd
	done       chan struct{} // closed when it has exited
	recoveries atomic.Int64
}

// Recoveries counts how often it has recovered from a crash, as its log says.
func (m *Postmaster) Recoveries() int64 { return m.recoveries.Load() }

// recoveryCounter passes the log on, and counts the recoveries in it.
type recoveryCounter struct {
	log        io.Writer
	recoveries *atomic.Int64
}

// Write implements io.Writer.
func (c *recoveryCounter) Write(b []byte) (int, error) {
	c.recoveries.Add(int64(bytes.Count(b, []byte("automatic recovery in progress"))))
	return c.log.Write(b)
}

// Detach stops the server and returns its PostgreSQL, which does not run yet. When that is stopped
// again, the server may start as before.
func (p *Proc) Detach(ctx context.Context) (*Postmaster, error) {
	m := &Postmaster{log: newLastLines(20)}
	var err error
	if m.url, err = p.database(); err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	if m.sockets, err = p.sockets(); err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	db, err := pgx.Connect(ctx, m.url)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	var cluster string
	err = db.QueryRow(ctx, `SHOW data_directory`).Scan(&cluster)
	if err = errors.Join(err, db.Close(ctx)); err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	info, err := os.Stat(cluster)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	m.owner, _ = info.Sys().(*syscall.Stat_t)
	opts, err := os.ReadFile(filepath.Join(cluster, "postmaster.opts"))
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL: %w", err)
	}
	// The file has the program, then each argument in quotes. Nothing is escaped.
	program, rest, ok := strings.Cut(strings.TrimSuffix(strings.TrimSpace(string(opts)), `"`), ` "`)
	if !ok {
		return nil, fmt.Errorf("PostgreSQL: command line %q", opts)
	}
	m.args = append([]string{program}, strings.Split(rest, `" "`)...)
	return m, p.Stop()
}

// URL is the URL of its database.
func (m *Postmaster) URL() string { return m.url }

// Set makes the next Start use a setting.
func (m *Postmaster) Set(name, value string) { m.args = append(m.args, "-c", name+"="+value) }

// PID is the process id of a running one.
func (m *Postmaster) PID() int { return m.cmd.Process.Pid }

// Start starts it, and returns when it accepts connections.
func (m *Postmaster) Start(ctx context.Context) error {
	if m.sockets == "" {
		return m.start(ctx)
	}
	if err := os.Mkdir(m.sockets, 0o700); err == nil { // else it still exists
		if err := os.Chown(m.sockets, int(m.owner.Uid), int(m.owner.Gid)); err != nil {
			return fmt.Errorf("PostgreSQL: %w", err)
		}
	}
	return m.start(ctx)
}

func (m *Postmaster) start(ctx context.Context) error {
	m.cmd = exec.Command(m.args[0], m.args[1:]...)
	m.cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH")}
	output := &recoveryCounter{log: m.log, recoveries: &m.recoveries}
	m.cmd.Stdout, m.cmd.Stderr, m.cmd.Dir, m.cmd.WaitDelay = output, output, "/", time.Second
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 { // PostgreSQL does not run as root
		m.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: m.owner.Uid, Gid: m.owner.Gid, Groups: []uint32{}}
	}
	stopWithParent(m.cmd.SysProcAttr)
	m.done = make(chan struct{})
	started := make(chan error, 1)
	cmd, done := m.cmd, m.done
	go func() {
		// The kernel stops the child when the thread that started it ends.
		runtime.LockOSThread()
		started <- cmd.Start()
		_ = cmd.Wait() // its log says how it ended
		close(done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	return m.await(ctx, func() (bool, error) { return false, errors.New("it has ended") })
}

// await waits until it accepts connections. It calls ended if it has ended before, and waits on
// unless that returns true or an error.
func (m *Postmaster) await(ctx context.Context, ended func() (bool, error)) error {
	err := xrpc.Until(ctx, startLimit, func() (bool, error) {
		select {
		case <-m.done:
			return ended()
		default:
		}
		db, err := pgx.Connect(ctx, m.url)
		if err != nil {
			return false, nil
		}
		return true, db.Close(ctx)
	})
	if err != nil {
		return fmt.Errorf("PostgreSQL: %w\n%s", err, m.log)
	}
	return nil
}

// Stop stops it. Running transactions are rolled back.
func (m *Postmaster) Stop() error {
	select {
	case <-m.done:
		return nil
	default:
	}
	if err := m.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case <-m.done:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("PostgreSQL: still running after %s\n%s", stopLimit, m.log), m.cmd.Process.Signal(syscall.SIGQUIT))
	}
}

// AwaitRecovery waits until it accepts connections after a crash. It starts it again if it has
// ended, as after a recovery that failed.
func (m *Postmaster) AwaitRecovery(ctx context.Context) error {
	return m.await(ctx, func() (bool, error) { return true, m.Restart(ctx) })
}

// Kill kills the postmaster with SIGKILL. Its children notice and end by themselves.
func (m *Postmaster) Kill() error {
	if err := m.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	<-m.done
	return nil
}

// Restart starts it again after Kill. It is refused while children of the killed one are left.
func (m *Postmaster) Restart(ctx context.Context) error {
	var last error
	err := xrpc.Until(ctx, startLimit, func() (bool, error) {
		last = m.Start(ctx)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}
