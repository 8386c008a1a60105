package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// PgBouncer is a real PgBouncer before a PostgreSQL.
type PgBouncer struct {
	program, config string
	address         string
	database        *url.URL
	owner           *syscall.Stat_t // account of the PostgreSQL
	log             *lastLines
	*child
}

// pgBouncerConfig is the usual configuration. By default, PgBouncer waits 15 seconds after a failed
// connection to PostgreSQL before it tries again.
const pgBouncerConfig = `[databases]
* = host=%s port=%s user=%s
[pgbouncer]
pool_mode = %s
listen_addr = %s
listen_port = %s
unix_socket_dir =
auth_type = any
max_client_conn = 400
default_pool_size = 100
server_login_retry = 0.5
`

// StartPgBouncer starts a program of PgBouncer before a database that has a unix socket. mode is
// session, transaction or statement. Its files go into dir, which every account must be able to
// enter: PgBouncer does not run as root.
func StartPgBouncer(ctx context.Context, program, mode, databaseURL, dir string) (*PgBouncer, error) {
	return StartPgBouncerWith(ctx, program, func(sockets, port, user, listen, listenPort string) string {
		return fmt.Sprintf(pgBouncerConfig, sockets, port, user, mode, listen, listenPort)
	}, databaseURL, dir)
}

// PgBouncerConfig returns the text of a configuration. sockets, port and user lead to the database;
// clients connect to listen and listenPort without a password.
type PgBouncerConfig func(sockets, port, user, listen, listenPort string) string

// StartPgBouncerWith is StartPgBouncer with another configuration.
func StartPgBouncerWith(ctx context.Context, program string, config PgBouncerConfig, databaseURL,
	dir string) (_ *PgBouncer, err error) {
	defer Catch(&err)
	b := &PgBouncer{program: program, config: filepath.Join(dir, "pgbouncer.ini"), log: newLastLines(8)}
	Check(errs.Wrap(b.configure(config, databaseURL), "PgBouncer"))
	Check(b.Start(ctx))
	return b, nil
}

// configure chooses a free port and writes the configuration.
func (b *PgBouncer) configure(config PgBouncerConfig, databaseURL string) (err error) {
	defer Catch(&err)
	b.database = Must(url.Parse(databaseURL))
	sockets := b.database.Query().Get("host")
	info := Must(os.Stat(sockets))
	b.owner, _ = info.Sys().(*syscall.Stat_t) // PostgreSQL accepts its own account at its socket
	free := Must(net.Listen("tcp", "127.0.0.1:0"))
	b.address = free.Addr().String()
	host, port, err := net.SplitHostPort(b.address)
	Check(errors.Join(err, free.Close()))
	text := config(sockets, b.database.Query().Get("port"), b.database.User.Username(), host, port)
	return os.WriteFile(b.config, []byte(text), 0o644)
}

// URL is the URL of the database through PgBouncer.
func (b *PgBouncer) URL() string {
	through := url.URL{Scheme: "postgres", User: b.database.User, Host: b.address, Path: b.database.Path,
		RawQuery: "sslmode=disable"}
	return through.String()
}

// Log returns the last lines of PgBouncer's log.
func (b *PgBouncer) Log() string { return b.log.String() }

// Start starts PgBouncer, and returns when it listens.
func (b *PgBouncer) Start(ctx context.Context) error {
	cmd := exec.Command(b.program, b.config)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = b.log, b.log, time.Second
	var err error
	if b.child, err = startChild("PgBouncer", cmd, b.log, b.owner); err != nil {
		return err
	}
	err = xrpc.Until(ctx, stopLimit, func() (bool, error) {
		if b.exited() {
			return false, errors.New("it has ended")
		}
		conn, err := net.Dial("tcp", b.address)
		return err == nil && conn.Close() == nil, nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("PgBouncer: %w\n%s", err, b.log), b.Kill())
	}
	return nil
}

// Revive starts PgBouncer again if it has ended by itself, as an init system would. It returns the
// last lines of the log, or "" if PgBouncer still runs.
func (b *PgBouncer) Revive(ctx context.Context) (log string, err error) {
	if b.exited() {
		return b.Log(), b.Start(ctx)
	}
	return "", nil
}

// Kill kills PgBouncer with SIGKILL.
func (b *PgBouncer) Kill() error { return b.end(syscall.SIGKILL) }
