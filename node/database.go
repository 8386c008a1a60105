package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"mlsd/internal/errs"
	"mlsd/internal/localpg"
	"mlsd/internal/pgpool"
	"mlsd/internal/standby"
	"mlsd/internal/terminal"
	"mlsd/internal/worker"
)

// reachTimeout bounds the first connection to the operator's PostgreSQL. By default the driver
// waits for minutes.
const reachTimeout = 15 * time.Second

// stopTimeout bounds the stop of the private PostgreSQL.
const stopTimeout = 30 * time.Second

// database returns the URL of the database to use. If mlsd runs a private PostgreSQL, database also
// returns this server, and the caller stops it.
func database(
	ctx context.Context, cfg Config, log *slog.Logger, step localpg.Step,
) (string, *localpg.Server, error) {
	if cfg.DatabaseURL != "" {
		return cfg.DatabaseURL, nil, awaitDatabase(ctx, cfg, log)
	}
	own, err := localpg.Start(ctx, localpg.Config{DataDir: cfg.DataDir, Logger: log, Archive: cfg.WALArchive, Step: step})
	if err != nil {
		return "", nil, fmt.Errorf("start the private PostgreSQL: %w", err)
	}
	if err := own.EnsureDatabase(ctx); err != nil {
		return "", nil, errors.Join(fmt.Errorf("make the database: %w", err), stopDatabase(ctx, own))
	}
	return own.ConnString(localpg.Database), own, nil
}

// stopDatabase stops the private PostgreSQL, even if ctx has ended.
func stopDatabase(ctx context.Context, own *localpg.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return own.Stop(ctx)
}

// RunningDatabase returns the URL of the operator's database, or of the private PostgreSQL of the
// mlsd that runs on the data directory.
func RunningDatabase(cfg Config) (string, error) {
	if cfg.DatabaseURL != "" {
		return cfg.DatabaseURL, nil
	}
	url, err := localpg.Running(cfg.DataDir, localpg.Database)
	return url, errs.Wrap(err, "MLSD_DATABASE_URL is not set (settings are read from %s), so this is about a PostgreSQL "+
		"of mlsd's own", cfg.Sources())
}

// WithDatabase calls do with the URL of the database to use, for a command. If the private
// PostgreSQL does not run, it runs until do returns. Only the service makes a cluster: a command
// that makes one acts on the wrong database.
func WithDatabase(ctx context.Context, cfg Config, stderr io.Writer, do func(url string) error) (err error) {
	if cfg.DatabaseURL == "" {
		url, err := RunningDatabase(cfg)
		if err == nil {
			return do(url)
		}
		exists, existsErr := localpg.HasCluster(cfg.DataDir)
		if !exists || !errors.Is(err, localpg.ErrNotRunning) {
			return errors.Join(err, existsErr)
		}
	}
	shown := terminal.New(stderr)
	end := shown.Show()
	url, own, err := database(ctx, cfg, cfg.Logger(shown), shown.Step)
	end()
	if err != nil {
		return err
	}
	if own != nil {
		defer func() { err = errors.Join(err, stopDatabase(ctx, own)) }()
	}
	return do(url)
}

// waitPoll is the time between two attempts of awaitDatabase.
const waitPoll = time.Second

// awaitDatabase fails unless the operator's PostgreSQL accepts a connection before
// Config.WaitForDatabase is over. What waiting cannot mend, such as a wrong password, fails at
// once.
func awaitDatabase(ctx context.Context, cfg Config, log *slog.Logger) error {
	end := time.Now().Add(cfg.WaitForDatabase)
	for said := false; ; {
		err := reach(ctx, cfg.DatabaseURL, reachTimeout)
		waits := pgpool.Unavailable(err) && !pgpool.LoginRefused(err)
		if err == nil || ctx.Err() != nil || !waits || time.Now().After(end) {
			return err
		}
		if !said {
			log.Warn("the database does not answer yet: waiting", "at_most", cfg.WaitForDatabase.String(), "error", err)
			said = true
		}
		worker.Pause(ctx, waitPoll)
	}
}

// Reach fails unless a node can work with the database to use, and with its standby if one is set.
// It returns what the operator should change.
func (c Config) Reach(ctx context.Context, stderr io.Writer) (doubts []string, err error) {
	c.WaitForDatabase = 0
	err = WithDatabase(ctx, c, stderr, func(url string) (err error) {
		if doubts, err = c.judgeDatabase(ctx); err != nil {
			return err
		}
		if err := c.claimDatabase(ctx, url, false); err != nil {
			return err
		}
		return c.reachStandby(ctx)
	})
	return doubts, err
}

// judgeDatabase fails if the role or the settings of the operator's PostgreSQL keep a node from
// working. It returns what the operator should change.
func (c Config) judgeDatabase(ctx context.Context) (doubts []string, err error) {
	if c.DatabaseURL == "" {
		return nil, nil // localpg sets its own
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	cfg, err := pgpool.Config(c.DatabaseURL)
	if err != nil {
		return nil, err
	}
	conn, err := pgpool.Connect(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("reach the database that MLSD_DATABASE_URL names: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	doubts, err = pgpool.Check(ctx, conn, cfg)
	return doubts, errs.Wrap(err, "MLSD_DATABASE_URL")
}

// reach fails unless the operator's PostgreSQL accepts a connection within timeout, and gives the
// connection a session of its own.
func reach(ctx context.Context, url string, timeout time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := pgpool.ConnectFor(ctx, url, nil)
	if err != nil {
		return fmt.Errorf("reach the database that MLSD_DATABASE_URL names: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return errs.Wrap(pgpool.CheckSessions(ctx, conn), "MLSD_DATABASE_URL")
}

// reachStandby fails unless MLSD_READ_DATABASE_URL, if it is set, names a standby of the operator's
// PostgreSQL that accepts a connection.
func (c Config) reachStandby(ctx context.Context) error {
	if c.ReadDatabaseURL == "" {
		return nil
	}
	primary, err := pgpool.Config(c.DatabaseURL)
	if err != nil {
		return err
	}
	read, err := pgpool.Config(c.ReadDatabaseURL)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	return errs.Wrap(standby.Check(ctx, primary.ConnConfig, read.ConnConfig), "MLSD_READ_DATABASE_URL")
}

// checkStandby fails if the standby is of another database, or refuses the account. Any other fault
// of the standby may pass: until then reads use the primary.
func (l *lifecycle) checkStandby(ctx context.Context) error {
	err := l.cfg.reachStandby(ctx)
	passing := pgpool.Unavailable(err) && !pgpool.LoginRefused(err)
	if passing || errors.Is(err, standby.ErrNotStandby) || errors.Is(err, standby.ErrNoRights) {
		l.log.Warn("the standby cannot be read: reads use the primary until it can", "error", err)
		return nil
	}
	return err
}
