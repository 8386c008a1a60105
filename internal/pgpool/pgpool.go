// Package pgpool opens the server's connection pools and says what a database error means.
//
// There are three pools:
//   - Open is for requests, and for the delivery of events and pushes.
//   - OpenReserved is for batches that many requests share. Single requests never take its
//     connections.
//   - OpenMaintenance is for workers that clean up, for metrics and for checks.
//
// ConnectToMigrate opens a separate connection, for package migrations. Listen takes a connection
// out of its pool, for notifications.
//
// Open and OpenReserved force the planner to look rows up by an index. OpenMaintenance keeps
// PostgreSQL's planner settings.
package pgpool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"mlsd/internal/errs"
	"mlsd/internal/tracing"
)

// batchLockTimeout bounds how long a batch waits for a lock, because one locked row delays the
// whole batch. Items that could not be written in this time move to another transaction.
const batchLockTimeout = "250"

const (
	// reservedConns is the size of a reserved pool. The lanes of the message log need thirteen
	// connections (four shards, one for large messages and eight busy convos). The use of tokens
	// needs one.
	reservedConns = 14
	// maintenanceConns is the size of a maintenance pool. A check and the expiry of messages can
	// keep one connection each for minutes.
	maintenanceConns = 4
	// maintenanceIdle is how long a connection of a maintenance pool can be idle before it is
	// pinged on its next use. The workers use a connection every second. If that connection has
	// been closed, a worker's round fails.
	maintenanceIdle = 5 * time.Second
)

// pingTimeout is how long a connection that was idle for a second may take to answer a ping before
// it is used. If it does not answer, it is closed, and the caller gets another connection.
const pingTimeout = 2 * time.Second

// requestConns is the size of a request pool: four connections for each processor, from 8 to 32. If
// the database has as many processors as the server, more connections are not faster, and they slow
// batches down.
func requestConns() int32 { return int32(min(max(4*runtime.GOMAXPROCS(0), 8), 32)) }

// Open returns the pool for requests on the database at url. It does not wait for the database to
// answer. A request that finds no free connection waits for one until its own deadline, and fails
// with an error that is Unavailable.
func Open(ctx context.Context, url string, options ...Option) (*pgxpool.Pool, error) {
	cfg, err := Config(url)
	if err != nil {
		return nil, err
	}
	return open(ctx, cfg, options)
}

// Option changes how a pool connects.
type Option func(*pgxpool.Config)

// Traced makes spans for a pool's statements, below the spans of their contexts.
func Traced(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = tracing.Statements{} }

// OpenReserved returns a pool of 14 connections for batches that many requests share. So a batch
// does not wait for a connection behind single requests. It waits for a lock for 250 ms at most.
func OpenReserved(ctx context.Context, url string, options ...Option) (*pgxpool.Pool, error) {
	cfg, err := config(url, lookups)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = batchLockTimeout
	cfg.MaxConns = reservedConns
	return open(ctx, cfg, options)
}

// OpenMaintenance returns a pool of 4 connections for work in the background that no request waits
// for. It does not change the planner's settings, because such work reads many rows, and a scan can
// be the right plan.
func OpenMaintenance(ctx context.Context, url string, options ...Option) (*pgxpool.Pool, error) {
	cfg, err := config(url, nil)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = maintenanceConns
	// A check can read for minutes, and acknowledges nothing, so it may be cancelled.
	cfg.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error { return SetLater(conn) }
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > maintenanceIdle }
	return open(ctx, cfg, options)
}

// Config returns how Open connects to the database at url. The URL may change pool_max_conns, and the
// settings of the session that are usual: see settings.go.
func Config(url string) (*pgxpool.Config, error) {
	cfg, err := config(url, lookups)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(url, "pool_max_conns") {
		cfg.MaxConns = requestConns()
	}
	return cfg, nil
}

// ConnectToMigrate returns a connection that changes the schema of the database at url.
func ConnectToMigrate(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := config(url, migrationLimits)
	if err != nil {
		return nil, err
	}
	neverCancel(cfg.ConnConfig)
	return Connect(ctx, cfg.ConnConfig)
}

// ConnectFor returns a connection to the database at url for a command. Its own settings win over
// those of the URL.
func ConnectFor(ctx context.Context, url string, own map[string]string) (*pgx.Conn, error) {
	cfg, err := config(url, nil)
	if err != nil {
		return nil, err
	}
	maps.Copy(cfg.ConnConfig.RuntimeParams, own)
	neverCancel(cfg.ConnConfig)
	return Connect(ctx, cfg.ConnConfig)
}

// config parses the URL and adds the session's settings. own are those of the pool.
func config(url string, own map[string]string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse the database URL: %w", err)
	}
	cfg.PingTimeout = pingTimeout
	boundConnect(&cfg.ConnConfig.Config)
	apply(cfg.ConnConfig.RuntimeParams, own)
	cfg.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
		neverCancel(conn)
		return SetLater(conn)
	}
	return cfg, nil
}

func open(ctx context.Context, cfg *pgxpool.Config, options []Option) (*pgxpool.Pool, error) {
	for _, option := range options {
		option(cfg)
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	return pool, errs.Wrap(err, "open the database pool")
}

// Queryer is what a read needs: a pool, a connection or a transaction.
type Queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Collect runs a query and converts each row with to. If there are no rows, the result is empty.
func Collect[T any](ctx context.Context, q Queryer, to pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return pgx.CollectRows(Rows(ctx, q, sql, args...), to)
}

// Rows runs a query. If it fails, pgx.ForEachRow and pgx.CollectRows return the error.
func Rows(ctx context.Context, q Queryer, sql string, args ...any) pgx.Rows {
	rows, err := q.Query(ctx, sql, args...)
	if rows == nil {
		rows = failedRows{err: err}
	}
	return rows
}

// Execer is a pool, a connection or a transaction, to write with.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// DB is a pool, a connection or a transaction.
type DB interface {
	Execer
	Queryer
}

// Storable returns text without what PostgreSQL cannot store. It removes NUL, and replaces bytes
// that are not UTF-8 by U+FFFD.
func Storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}

// Code returns the SQLSTATE of err, or "" if the server did not send one.
func Code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// LockTimeout reports whether err says that a lock was not free within lock_timeout (55P03).
func LockTimeout(err error) bool { return Code(err) == "55P03" }

// TransitionError says that a row cannot go from one state to another, because the row was not in
// the state that its writer expected. Triggers of the database refuse such a write.
type TransitionError struct{ Entity, From, To string }

// Transition returns err as a *TransitionError, if the server sent such an error.
func Transition(err error) (*TransitionError, bool) {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "MLS01" {
		return nil, false
	}
	return &TransitionError{Entity: pgErr.TableName, From: pgErr.ColumnName, To: pgErr.ConstraintName}, true
}

// Unavailable reports whether err says that the database cannot be reached, is shutting down or is
// overloaded. The request can succeed later. Unless OutcomeUnknown(err), the request has changed
// nothing.
func Unavailable(err error) bool {
	if errors.As(err, new(*pgconn.ConnectError)) { // whatever the server said, there is no session
		return true
	}
	if code := Code(err); code != "" {
		return code[:2] == "08" || code[:2] == "53" || code[:2] == "57" || code == "25006" || code == "25P03" ||
			code == "40P01" || code == "40001" || LockTimeout(err)
	}
	var netErr net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &netErr) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, puddle.ErrClosedPool) ||
		pgconn.SafeToRetry(err) || pgconn.Timeout(err) || outOfStep(err)
}

// outOfStep reports whether the server's messages did not fit the requests, for example because a
// pooler has mixed up sessions. pgx has closed the connection, and has no type for this error.
func outOfStep(err error) bool {
	return err != nil && strings.Contains(err.Error(), "received unexpected message type")
}

// LoginRefused reports whether err says that the server refuses the account or has no such
// database. Waiting does not help.
func LoginRefused(err error) bool {
	code := Code(err)
	return strings.HasPrefix(code, "28") || code == "3D000"
}

// OutcomeUnknown reports whether it is unknown if a transaction was committed. err is the error of
// a COMMIT or of an autocommitted statement. After an ERROR of the server the outcome is known,
// because the server has rolled back. A FATAL error, which ends a session, can come after the
// COMMIT. So can the loss of a connection.
func OutcomeUnknown(err error) bool {
	var fromServer *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, ErrNotSent):
		return false
	case errors.As(err, &fromServer):
		return fromServer.SeverityUnlocalized != "ERROR"
	case errors.As(err, new(pgx.ErrPreprocessingBatch)), errors.Is(err, pgx.ErrTxCommitRollback):
		return false // COMMIT was not sent, or the server answered it with ROLLBACK
	}
	return true
}

// ConnectionLost reports whether a transaction's error says that the database cannot be reached, or
// that the outcome is unknown. A transaction that is safe to repeat is then tried again. A lock
// timeout is not such an error, because the caller has waited long enough.
func ConnectionLost(err error) bool {
	return Code(err) == "" || Unavailable(err) && !LockTimeout(err)
}
