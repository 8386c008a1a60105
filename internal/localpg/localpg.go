// Package localpg runs a private PostgreSQL server. The server belongs to this process and ends
// with it. Its cluster is in a directory that no other process uses. It listens on a unix socket
// only.
//
// The data directory holds:
//
//	postgres/           the cluster; initdb makes it once, this package never deletes it
//	postgres.init-*/    an initdb in progress; after a crash the next start removes it
//	postgres.restore-*/ a restore in progress; after a crash the next restore removes it
//	postgres.lock       flock of the owning process until it ends; its text is the owner's pid
//	pgbin/              downloaded binaries by major version; only if none are installed
//	run                 the directory of the socket, or a link to it if the path would be too long
//
// # Who may connect
//
// Only root and the account that the server runs as can open the socket: its directory has mode
// 0700. The server also asks the operating system whose process has connected ("peer"). It accepts
// the account of this process and the server's own account. TCP is off, and pg_hba refuses it too.
// Each Start writes the rules again (mlsd_hba.conf and mlsd_ident.conf in the cluster), whatever
// rules the cluster had before.
//
// # Root
//
// PostgreSQL does not run as root. If this process is root, the server runs as the account mlsd or
// postgres, whichever exists first. If neither exists, the server runs under a uid that has no
// account, so that no other program has this uid. initdb needs a name for its uid, so in this case
// it runs in a user namespace. If the system refuses the namespace, as some containers do, initdb
// runs as nobody, and its files are given to the uid before they are used. An existing cluster
// keeps its owner. If its owner is the account nobody, which earlier versions took, give it to
// another account with chown -R.
package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
)

const (
	// Database is the name of mlsd's database; see [Server.EnsureDatabase].
	Database = "mlsd"

	// MinMajor is the oldest major version of PostgreSQL that mlsd runs on.
	MinMajor = 15

	superuser = "mlsd" // the role made by initdb
	port      = "5432" // only a part of the socket's name: the server does not listen on TCP
)

// Config says where and how to run the server. Only DataDir is required.
type Config struct {
	// DataDir is mlsd's data directory. Start makes it if it does not exist. See [DefaultDataDir].
	DataDir string

	// Logger receives this package's messages and the server's own log. Nil discards them.
	Logger *slog.Logger

	// Step is called while a step takes time. It can be nil.
	Step Step

	// Settings are extra PostgreSQL settings, as with -c on its command line. They cannot change
	// where the server listens. With fsync=off, initdb does not sync either.
	Settings map[string]string

	// Archive is a directory to which the server copies its WAL, compressed, for [Restore]. Start
	// makes it if it does not exist. If it is empty, the server archives nothing.
	Archive string

	// DownloadDir is the directory of downloaded binaries. Empty means pgbin in DataDir. Several
	// processes may share a directory.
	DownloadDir string

	// installed are the directories that can hold binaries, best first. Nil means the usual
	// directories of this system. download puts an installation of a major version (bin/postgres,
	// bin/initdb, lib, share) into dir, if no binaries are installed. Nil downloads from Maven
	// Central. Only tests set these.
	installed []string
	download  func(ctx context.Context, major int, dir string) error
}

// Step gets the name of the step that is under way, and how far it is.
type Step func(step, detail string)

func (s Step) is(step, detail string) {
	if s != nil {
		s(step, detail)
	}
}

// Server is a running PostgreSQL. It is safe for concurrent use.
type Server struct {
	log       *slog.Logger
	lock      *lockFile // nil if its holder outlives the server
	child     *process
	socketDir string
	run       string // the argument of makeSocketDir

	stopOnce sync.Once
	stopErr  error
}

// Start starts the server of cfg.DataDir and returns once it accepts connections. It makes the
// cluster first if there is none. That takes less than a second. Crash recovery of a large cluster
// can take minutes. Start fails if ctx ends before the server accepts connections.
//
// Errors: [*InUseError] if another process owns the directory, [*VersionError] if the cluster needs
// another major version.
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

// startLocked is Start after the lock on the directory is acquired.
func startLocked(ctx context.Context, cfg Config, log *slog.Logger, dir string) (*Server, error) {
	c := &cluster{dir: filepath.Join(dir, "postgres"), log: log, step: cfg.Step}
	major, err := c.major()
	if err != nil {
		return nil, err
	}
	if c.account, err = chooseAccount(c.dir, major != 0); err != nil {
		return nil, err
	}
	if err := c.account.makeArchive(cfg.Archive); err != nil {
		return nil, err
	}
	if _, err := c.prepare(ctx, cfg, dir, major); err != nil {
		return nil, err
	}
	if err := removeLeftovers(ctx, dir, initPrefix, log); err != nil {
		return nil, err
	}
	if major == 0 {
		err = c.initialise(ctx)
	} else {
		err = c.stopOrphan(ctx)
	}
	if err != nil {
		return nil, err
	}
	return c.start(ctx, dir)
}

// prepare chooses the binaries and the settings. It returns the absolute path of the archive.
func (c *cluster) prepare(ctx context.Context, cfg Config, dataDir string, major int) (archive string, err error) {
	f := &finder{
		installed: cfg.installed, downloads: cmp.Or(cfg.DownloadDir, filepath.Join(dataDir, "pgbin")),
		download: cfg.download, log: c.log, step: c.step, account: c.account,
	}
	if f.installed == nil {
		f.installed = InstalledDirs()
	}
	if f.download == nil {
		f.download = downloader(mavenCentral, pinned, c.log, c.step)
	}
	if c.bin, err = f.find(ctx, major); err != nil {
		return "", err
	}
	if err := c.account.checkAccess(ctx, c.bin, dataDir); err != nil {
		return "", err
	}
	c.settings = maps.Clone(cfg.Settings)
	if c.settings == nil {
		c.settings = map[string]string{}
	}
	if cfg.Archive == "" {
		return "", nil
	}
	if archive, err = c.account.checkArchive(ctx, cfg.Archive); err != nil {
		return "", err
	}
	maps.Copy(c.settings, archiveSettings(archive))
	return archive, nil
}

// start runs the server of a cluster that is complete. The caller holds the lock of the data
// directory.
func (c *cluster) start(ctx context.Context, dataDir string) (*Server, error) {
	s := &Server{log: c.log, run: filepath.Join(dataDir, "run")}
	err := ignoreEnvironment()
	if err != nil {
		return nil, err
	}
	if s.socketDir, err = makeSocketDir(s.run, c.account); err != nil {
		return nil, err
	}
	c.step.is("starting PostgreSQL", "")
	if err = c.writeAuth(); err == nil {
		s.child, err = c.run(ctx, s.socketDir)
	}
	if err != nil {
		return nil, errors.Join(err, removeSocketDir(s.run))
	}
	c.log.Info("private PostgreSQL is up", "dir", c.dir, "pid", s.PID(),
		"bin", c.bin.dir, "version", c.bin.major, "account", c.account.name)
	return s, nil
}

// PID returns the process id of the server (the postmaster).
func (s *Server) PID() int { return s.child.pid() }

// Done returns a channel that is closed when the server's process has ended, after Stop or by
// itself. The owner cannot work without its database. It should call Stop, whose error says how the
// process ended.
func (s *Server) Done() <-chan struct{} { return s.child.done }

// Stop ends the server and releases the directory. It returns the error with which the server
// ended. Further calls return the same error.
//
// Stop asks for a fast shutdown first, which ends sessions and writes everything to disk. If ctx
// ends before that is done, it asks for an immediate shutdown. The next start then replays the WAL,
// and nothing committed is lost. Stop never sends SIGKILL, which would leave backends running.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() { s.stopErr = s.stop(ctx) })
	return s.stopErr
}

func (s *Server) stop(ctx context.Context) error {
	if err := s.child.stop(ctx); err != nil {
		// The server still runs. This process holds the lock until it ends.
		return fmt.Errorf("stop private PostgreSQL: %w", err)
	}
	err := errors.Join(s.child.exitError(), removeSocketDir(s.run))
	if s.lock != nil {
		err = errors.Join(err, s.lock.release())
	}
	if err != nil {
		return fmt.Errorf("stop private PostgreSQL: %w", err)
	}
	s.log.Info("private PostgreSQL is stopped")
	return nil
}
