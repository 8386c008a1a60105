package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mlsd/internal/worker"
)

// initPrefix is the start of the name of a cluster that initdb has not finished.
const initPrefix = "postgres.init-"

// cluster is a PostgreSQL data directory, with the settings, account and binaries to run it.
type cluster struct {
	dir      string // DataDir/postgres, absolute and free of symbolic links
	log      *slog.Logger
	step     Step
	settings map[string]string
	account  *account
	bin      binaries
}

// major returns the version that made the cluster, or 0 if there is no cluster yet. If other files
// are in the cluster's place, it returns an error, because this package does not overwrite them.
func (c *cluster) major() (int, error) {
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return 0, nil
	}
	data, err := os.ReadFile(filepath.Join(c.dir, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%s exists and is not a PostgreSQL cluster (no PG_VERSION): left alone", c.dir)
	}
	if err != nil {
		return 0, fmt.Errorf("cluster: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || major <= 0 {
		return 0, fmt.Errorf("%s/PG_VERSION holds no version: %q", c.dir, data)
	}
	return major, nil
}

// initialise makes the cluster under a temporary name, and renames it once it is complete and on
// disk. So a crash leaves either no cluster or a complete one.
func (c *cluster) initialise(ctx context.Context) (err error) {
	parent := filepath.Dir(c.dir)
	tmp, err := os.MkdirTemp(parent, initPrefix)
	if err != nil {
		return fmt.Errorf("make cluster: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := c.account.own(tmp); err != nil {
		return fmt.Errorf("make cluster: %w", err)
	}
	args := []string{"-D", tmp, "--username=" + superuser, "--auth-local=peer", "--auth-host=reject",
		"--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions"}
	if c.settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	c.log.Info("making a new PostgreSQL cluster", "dir", c.dir, "version", c.bin.major)
	c.step.is("making a new PostgreSQL cluster", "")
	if err := c.initdb(ctx, tmp, args); err != nil {
		return err
	}
	if err := os.Rename(tmp, c.dir); err != nil {
		return fmt.Errorf("make cluster: %w", err)
	}
	return syncDir(parent)
}

// initdb runs initdb as the server's account. initdb needs a name for its uid. If the account has
// no name, initdb borrows one in a user namespace. If the system refuses the namespace, initdb runs
// as nobody, and the new files are then given to the account. The server itself never runs as
// nobody.
func (c *cluster) initdb(ctx context.Context, tmp string, args []string) error {
	cmd := c.account.command(ctx, c.bin.initdb(), tmp, args...)
	if !c.account.unnamed {
		return runInitdb(cmd)
	}
	if borrowName(cmd.SysProcAttr, c.account) {
		err := runInitdb(cmd)
		var ended *exec.ExitError
		if err == nil || errors.As(err, &ended) || ctx.Err() != nil {
			return err
		}
		c.log.Debug("initdb cannot run in a user namespace", "error", err)
	}
	nobody, err := namedAccount("nobody")
	if err != nil || nobody.uid == 0 {
		return errors.Join(errors.New("initdb: this process is root, and there is no account to run PostgreSQL as: "+
			"make one (useradd --system mlsd), or set a database URL"), err)
	}
	c.log.Warn("initdb runs as nobody, because there is no account mlsd or postgres and no user namespace; "+
		"until it ends, other programs that run as nobody can change the new cluster", "dir", tmp)
	if err := nobody.own(tmp); err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	if err := runInitdb(nobody.command(ctx, c.bin.initdb(), tmp, args...)); err != nil {
		return err
	}
	return c.account.ownAll(tmp)
}

func runInitdb(cmd *exec.Cmd) error {
	// After SIGINT initdb removes its files.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := runChild(cmd); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

const (
	// readyPoll is the interval of checks whether the server is up. The server reports that only in
	// a file.
	readyPoll = 5 * time.Millisecond

	memoryPoll    = 200 * time.Millisecond // between attempts to start; see run
	backendsLimit = 60 * time.Second       // a backend sees the postmaster's end when it next waits

	sayAfter = 2 * time.Second // a start that takes longer says that it waits
)

// errMemoryInUse means that processes of an earlier postmaster use its shared memory.
var errMemoryInUse = errors.New("an earlier PostgreSQL still uses its shared memory")

// memoryInUse is a part of PostgreSQL's message when such processes keep it from starting.
const memoryInUse = "pre-existing shared memory block"

// run starts the postmaster and waits until it accepts connections. While backends of an earlier
// postmaster use its shared memory, PostgreSQL refuses to start. So run tries again for up to
// backendsLimit.
func (c *cluster) run(ctx context.Context, socketDir string) (*process, error) {
	end := time.Now().Add(backendsLimit)
	for waiting := false; ; waiting = true {
		child, err := c.runOnce(ctx, socketDir)
		if !errors.Is(err, errMemoryInUse) || time.Now().After(end) {
			return child, err
		}
		if !waiting {
			c.log.Warn("waiting for the last processes of a dead PostgreSQL", "dir", c.dir)
		}
		if worker.Pause(ctx, memoryPoll); ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
	}
}

// runOnce is one attempt of run. If the attempt fails, runOnce stops the postmaster, and the error
// ends with the last lines of the server's log.
func (c *cluster) runOnce(ctx context.Context, socketDir string) (*process, error) {
	// ctx is for the start only. The server runs until Stop, or until this process ends.
	cmd := c.account.command(context.WithoutCancel(ctx), c.bin.postgres(), c.dir, c.serverArgs(socketDir)...)
	output := &serverLog{log: c.log}
	cmd.Stdout, cmd.Stderr = output, output
	cmd.WaitDelay = tailWait // backends of a dead postmaster can write to its log
	child, err := startProcess(cmd)
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	if err := c.awaitReady(ctx, child); err != nil {
		err = errors.Join(err, child.stop(ctx))
		tail := output.tail()
		if strings.Contains(tail, memoryInUse) {
			err = errors.Join(errMemoryInUse, err)
		}
		return nil, fmt.Errorf("postgres did not start: %w\n%s", err, tail)
	}
	return child, nil
}

func (c *cluster) awaitReady(ctx context.Context, child *process) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	slow := time.After(sayAfter)
	for {
		if file, err := c.readPIDFile(); err == nil && file.pid == child.pid() && file.ready {
			return nil
		}
		select {
		case <-tick.C:
		case <-slow:
			c.log.Info("waiting for PostgreSQL, which replays its WAL if it was not stopped in order", "dir", c.dir)
		case <-child.done:
			return errors.Join(errors.New("it ended"), child.err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *cluster) pidFile() string { return filepath.Join(c.dir, "postmaster.pid") }
