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
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// Postmaster is the private PostgreSQL of a server of ours, running without that server. So it can
// be restarted while other servers use it.
type Postmaster struct {
	args    []string // its command line
	owner   *syscall.Stat_t
	sockets string // directory that it needs, or ""
	url     string
	log     *lastLines

	*child
	recoveries atomic.Int64
}

// Recoveries counts how often PostgreSQL has recovered from a crash, as its log says.
func (m *Postmaster) Recoveries() int64 { return m.recoveries.Load() }

// recoveryCounter passes the log on, and counts the recoveries in the log.
type recoveryCounter struct {
	log        io.Writer
	recoveries *atomic.Int64
}

// Write implements io.Writer.
func (c *recoveryCounter) Write(b []byte) (int, error) {
	c.recoveries.Add(int64(bytes.Count(b, []byte("automatic recovery in progress"))))
	return c.log.Write(b)
}

// Detach stops the server and returns its PostgreSQL, which does not run yet. The server may start
// again after that PostgreSQL is stopped.
func (p *Proc) Detach(ctx context.Context) (_ *Postmaster, err error) {
	defer Catch(&err)
	m := &Postmaster{log: newLastLines(20)}
	m.url, m.sockets = Must(p.database()), Must(p.sockets())
	var cluster string
	Check(Scan(ctx, m.url, `SHOW data_directory`, nil, &cluster))
	m.owner, _ = Must(os.Stat(cluster)).Sys().(*syscall.Stat_t)
	opts := Must(os.ReadFile(filepath.Join(cluster, "postmaster.opts")))
	// The file has the program, then each argument in quotes. Nothing is escaped.
	program, rest, ok := strings.Cut(strings.TrimSuffix(strings.TrimSpace(string(opts)), `"`), ` "`)
	if !ok {
		return nil, fmt.Errorf("PostgreSQL: command line %q", opts)
	}
	m.args = append([]string{program}, strings.Split(rest, `" "`)...)
	return m, p.Stop()
}

// URL is the URL of the database.
func (m *Postmaster) URL() string { return m.url }

// Set makes the next Start use a setting.
func (m *Postmaster) Set(name, value string) { m.args = append(m.args, "-c", name+"="+value) }

// PID is the process id of a running PostgreSQL.
func (m *Postmaster) PID() int { return m.cmd.Process.Pid }

// Start starts PostgreSQL, and returns when it accepts connections.
func (m *Postmaster) Start(ctx context.Context) (err error) {
	defer Catch(&err)
	if m.sockets != "" && os.Mkdir(m.sockets, 0o700) == nil { // if it fails, the directory still exists
		Check(errs.Wrap(os.Chown(m.sockets, int(m.owner.Uid), int(m.owner.Gid)), "PostgreSQL"))
	}
	cmd := exec.Command(m.args[0], m.args[1:]...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC", "LD_LIBRARY_PATH=" + os.Getenv("LD_LIBRARY_PATH")}
	output := &recoveryCounter{log: m.log, recoveries: &m.recoveries}
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.WaitDelay = output, output, "/", time.Second
	m.child = Must(startChild("PostgreSQL", cmd, m.log, m.owner))
	return m.awaitReady(ctx, func() (bool, error) { return false, errors.New("it has ended") })
}

// awaitReady waits until PostgreSQL accepts connections. If PostgreSQL ends before that, awaitReady
// calls ended, and waits on unless ended returns true or an error.
func (m *Postmaster) awaitReady(ctx context.Context, ended func() (bool, error)) error {
	err := xrpc.Until(ctx, startLimit, func() (bool, error) {
		if m.exited() {
			return ended()
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

// Stop stops PostgreSQL. Running transactions are rolled back.
func (m *Postmaster) Stop() error { return m.end(syscall.SIGINT) }

// AwaitRecovery waits until PostgreSQL accepts connections after a crash. If PostgreSQL has ended,
// as after a failed recovery, AwaitRecovery starts it again.
func (m *Postmaster) AwaitRecovery(ctx context.Context) error {
	return m.awaitReady(ctx, func() (bool, error) { return true, m.Restart(ctx) })
}

// Kill kills the postmaster with SIGKILL. Its children notice and end by themselves.
func (m *Postmaster) Kill() error { return m.end(syscall.SIGKILL) }

// Restart starts PostgreSQL again after Kill. Start fails while children of the killed postmaster
// are left.
func (m *Postmaster) Restart(ctx context.Context) error {
	return xrpc.UntilDone(ctx, startLimit, func() error { return m.Start(ctx) })
}

// killLimit is how long killed processes may take to end.
const killLimit = 10 * time.Second

// freeze stops all processes of PostgreSQL where they are.
func (m *Postmaster) freeze() error { return m.signalAll(syscall.SIGSTOP) }

// kill ends all processes of PostgreSQL at once with SIGKILL, frozen processes as well, and waits
// for the end.
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
// more children.
func (m *Postmaster) signalAll(signal syscall.Signal) error {
	pid := m.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("PostgreSQL: %w", err)
	}
	children := childrenOf(pid)
	if len(children) == 0 { // every PostgreSQL has children
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
