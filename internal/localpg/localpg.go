// Package localpg runs a private PostgreSQL: a server that belongs to this process, keeps its cluster in a directory that no other
// process uses, listens on a unix socket only, and does not outlive its owner.
//
// What lives in the data directory:
//
//	postgres/           the cluster; made once by initdb, never deleted or re-initialised by this package
//	postgres.init-*/    an initdb in progress; left over after a crash, removed by the next start
//	postgres.lock       flock held for life by the owning process; its text is the owner's pid
//	postgres.socketdir  path of the socket directory, if it had to be elsewhere
//	pgbin/              downloaded binaries by major version; only if none are installed
//	run/                the socket, when its path is short enough
//
// # Who may connect
//
// The server trusts whoever reaches its socket (pg_hba "local all all trust"; TCP is off, and refused in pg_hba as well). The
// socket's directory has mode 0700 and belongs to the account that the server runs as, so only that account and root get
// there, and both can read, change and signal the cluster anyway: a password kept beside it would add nothing. "peer" would not
// do, since mlsd may be root while the server cannot be.
package localpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

const (
	// Database is the name of mlsd's database; see [Server.EnsureDatabase].
	Database = "mlsd"

	// MinMajor is the oldest major version of PostgreSQL that mlsd runs on.
	MinMajor = 15

	superuser = "mlsd" // the role made by initdb
	port      = "5432" // only part of the socket's name: nothing listens on TCP
)

// Config says where and how to run the server. Only DataDir is required.
type Config struct {
	// DataDir is mlsd's data directory; it is made if missing. See [DefaultDataDir].
	DataDir string

	// Logger receives what happens here, and the server's own log. Nil discards it.
	Logger *slog.Logger

	// Settings are extra PostgreSQL settings, as with -c on its command line. They cannot override where the server listens.
	// With fsync=off, initdb does not sync either.
	Settings map[string]string

	// BinDir is the directory with postgres and initdb. Empty: installed ones are looked for, then downloaded.
	BinDir string

	// DownloadDir is where downloaded binaries are kept. Empty: pgbin in DataDir. Several processes may share one.
	DownloadDir string

	// Download puts an installation of the given major version (bin/postgres, bin/initdb, lib, share) into dir. Nil downloads
	// from Maven Central. It is called only if no binaries are installed.
	Download func(ctx context.Context, major int, dir string) error

	// search lists directories that may hold binaries, best first. Nil: those of this system. A seam for tests.
	search func() []string
}

// Server is a running PostgreSQL. All methods may be called from any goroutine.
type Server struct {
	log       *slog.Logger
	lock      *lockFile
	child     *process
	socketDir string
	service   string // path of a service file that neutralises PGSERVICE, or ""

	stopOnce sync.Once
	stopErr  error
}

// Start runs the server of cfg.DataDir, making the cluster first if there is none, and returns once it accepts connections.
// That takes under a second for a new cluster, but crash recovery of a large one may take minutes: ctx bounds it.
//
// Errors: [*InUseError] if another process owns the directory, [*VersionError] if the cluster needs another major version.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	if cfg.DataDir == "" {
		return nil, errors.New("localpg: no data directory")
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("private PostgreSQL in %s: %w", cfg.DataDir, err)
		}
	}()
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	dir, err := prepareDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	lock, err := acquireLock(dir)
	if err != nil {
		return nil, err
	}
	s, err := startLocked(ctx, cfg, log, dir)
	if err != nil {
		return nil, errors.Join(err, lock.release())
	}
	s.lock = lock
	return s, nil
}

// startLocked is Start once the directory is ours.
func startLocked(ctx context.Context, cfg Config, log *slog.Logger, dir string) (*Server, error) {
	c := &cluster{dir: filepath.Join(dir, "postgres"), log: log, settings: cfg.Settings}
	major, err := c.major()
	if err != nil {
		return nil, err
	}
	if c.account, err = chooseAccount(c.dir, major != 0); err != nil {
		return nil, err
	}
	finder := &binaryFinder{cfg: cfg, log: log, cluster: c.dir, dir: cfg.DownloadDir, account: c.account}
	if finder.dir == "" {
		finder.dir = filepath.Join(dir, "pgbin")
	}
	if c.bin, err = finder.find(ctx, major); err != nil {
		return nil, err
	}
	if err := c.account.checkAccess(ctx, c.bin, dir); err != nil {
		return nil, err
	}
	if err := removeLeftovers(dir, initPrefix); err != nil {
		return nil, err
	}
	if major == 0 {
		if err := c.initialise(ctx); err != nil {
			return nil, err
		}
	} else if err := c.settle(ctx); err != nil {
		return nil, err
	}
	socketDir, err := prepareSocketDir(dir, c.account)
	if err != nil {
		return nil, err
	}
	s := &Server{log: log, socketDir: socketDir}
	if s.service, err = writeServiceFile(socketDir); err != nil {
		return nil, err
	}
	if s.child, err = c.run(ctx, socketDir); err != nil {
		return nil, errors.Join(err, removeSocketDir(socketDir))
	}
	log.Info("private PostgreSQL is up", "dir", c.dir, "pid", s.PID(), "bin", c.bin.dir, "version", c.bin.major, "account", c.account.name)
	return s, nil
}

// PID is the process id of the server (the postmaster).
func (s *Server) PID() int { return s.child.pid() }

// Done is closed when the server's process has ended, asked to or not. The owner cannot go on without its database: it
// should call Stop and exit with [Server.Err].
func (s *Server) Done() <-chan struct{} { return s.child.done }

// Err says how the process ended, once Done is closed; nil for a clean exit and before.
func (s *Server) Err() error {
	select {
	case <-s.child.done:
		return s.child.exitError()
	default:
		return nil
	}
}

// Stop ends the server: fast shutdown first (sessions are ended, everything is on disk); if ctx ends before that is done,
// immediate shutdown (the next start replays the log, nothing committed is lost). Never SIGKILL, which would leave backends
// behind. It gives the directory free and returns the error with which the server ended; further calls return the same.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() { s.stopErr = s.stop(ctx) })
	return s.stopErr
}

func (s *Server) stop(ctx context.Context) error {
	if err := s.child.stop(ctx); err != nil && !s.child.ended() {
		// It still runs: the lock stays ours until this process ends.
		return fmt.Errorf("stop private PostgreSQL: %w", err)
	}
	err := errors.Join(s.child.exitError(), removeSocketDir(s.socketDir), s.lock.release())
	if err != nil {
		return fmt.Errorf("stop private PostgreSQL: %w", err)
	}
	s.log.Info("private PostgreSQL is stopped")
	return nil
}

// removeLeftovers deletes the entries of dir whose names start with prefix: what a crash left half done. The caller holds
// the lock, so nobody is working on them.
func removeLeftovers(dir, prefix string) error {
	paths, err := filepath.Glob(filepath.Join(globEscape(dir), prefix+"*"))
	if err != nil {
		return fmt.Errorf("look for leftovers: %w", err)
	}
	var errs []error
	for _, p := range paths {
		errs = append(errs, os.RemoveAll(p))
	}
	return errors.Join(errs...)
}
