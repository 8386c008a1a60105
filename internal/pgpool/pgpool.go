// Package pgpool opens the server's connection pools and says what a database error means.
//
// There are three pools:
//   - Open is for requests, and for the delivery of events and pushes.
//   - OpenReserved is for batches that many requests share. Single requests never take its
//     connections.
//   - OpenMaintenance is for workers that clean up, for metrics and for checks.
//
// ConnectToMigrate opens a connection of its own, for package migrations.
//
// The first two force the planner to look rows up by an index. The third keeps PostgreSQL's planner
// settings.
package pgpool

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// limits bound what one session can cost. Times are milliseconds, unless said.
var limits = map[string]string{
	"lock_timeout":                        "2000",  // a duplicate request waits this long for the first one
	"statement_timeout":                   "15000", // no statement of ours needs a tenth of it
	"idle_in_transaction_session_timeout": "15000", // a stopped node must not hold locks
	// A node that the network has cut off must not hold locks either: the server ends its sessions
	// half a minute later. Seconds.
	"tcp_keepalives_idle":     "15",
	"tcp_keepalives_interval": "5",
	"tcp_keepalives_count":    "3",
	// The planner's costs of our statements are wrong by thousands, because it does not know how
	// many rows an array has. With jit it compiles the statement that indexes events each time, for
	// half a second of processor time.
	"jit":              "off",
	"timezone":         "UTC",
	"application_name": "mlsd",
}

// lookups are the planner settings of the pools that requests use. A request is a handful of index
// look-ups. In a young table the planner has no statistics, or keeps a plan from when the table was
// small. It then prefers scans, whose cost grows with the table. These settings allow only the use
// of an index, and save the time of planning. Without them the database needs a third more
// processor time for each request of a storm of joins.
var lookups = map[string]string{
	"plan_cache_mode":   "force_generic_plan",
	"enable_seqscan":    "off",
	"enable_bitmapscan": "off",
	"enable_hashjoin":   "off",
	"enable_mergejoin":  "off",
}

// batchLockTimeout bounds how long a batch waits for a lock: one row of another transaction delays
// the whole batch. What could not be written in this time moves to a transaction of its own.
const batchLockTimeout = "250"

const (
	// reservedConns is the size of a reserved pool: the lanes of the message log, four, one and
	// eight, and one for the uses of tokens.
	reservedConns = 14
	// maintenanceConns is the size of a maintenance pool. A check and the expiry of messages can
	// keep one connection each for minutes.
	maintenanceConns = 4
	// maintenanceIdle is after how long without use a connection of a maintenance pool is pinged
	// first. The workers use one every second. If it has been closed, a round of theirs fails.
	maintenanceIdle = 5 * time.Second
)

// pingTimeout is how long a connection that was idle for a second may take to answer before it is
// used. A silent one is closed after it, and the caller gets another one.
const pingTimeout = 2 * time.Second

// requestConns is the size of a request pool: four connections for each processor, from 8 to 32.
// More connections are not faster where the database has as many processors as the server, and they
// slow the batches down.
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

// Traced makes spans of a pool's statements, below the spans of their contexts.
func Traced(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = tracing.Statements{} }

// OpenReserved returns a pool of 14 connections for batches that many requests share. A batch does
// not queue for a connection behind single requests. It waits for a lock for 250 ms at most.
func OpenReserved(ctx context.Context, url string, options ...Option) (*pgxpool.Pool, error) {
	cfg, err := config(url, limits, lookups)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = batchLockTimeout
	cfg.MaxConns = reservedConns
	return open(ctx, cfg, options)
}

// OpenMaintenance returns a pool of 4 connections for work in the background that no request waits
// for. It does not change the planner's settings: such work reads many rows, and a scan can be
// the right plan.
func OpenMaintenance(ctx context.Context, url string, options ...Option) (*pgxpool.Pool, error) {
	cfg, err := config(url, limits)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = maintenanceConns
	// A check can read for minutes, and acknowledges nothing: it is cancelled.
	cfg.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error { return SetLater(conn) }
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > maintenanceIdle }
	return open(ctx, cfg, options)
}

// Config returns how Open connects to the database at url. Settings in the URL, pool_max_conns
// included, win over ours.
func Config(url string) (*pgxpool.Config, error) {
	cfg, err := config(url, limits, lookups)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(url, "pool_max_conns") {
		cfg.MaxConns = requestConns()
	}
	return cfg, nil
}

// migrationLimits are the settings of a connection that changes the schema. A migration can read a
// large table, so no statement has a time limit. The caller sets lock_timeout.
var migrationLimits = map[string]string{
	"statement_timeout":                   "0",
	"idle_in_transaction_session_timeout": "60000",
	"application_name":                    "mlsd migrate",
}

// ConnectToMigrate returns a connection that changes the schema of the database at url.
func ConnectToMigrate(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := config(url, migrationLimits, limits)
	if err != nil {
		return nil, err
	}
	return Connect(ctx, cfg.ConnConfig)
}

// config parses the URL and adds the session settings that it lacks.
func config(url string, settings ...map[string]string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse the database URL: %w", err)
	}
	cfg.PingTimeout = pingTimeout
	boundConnect(&cfg.ConnConfig.Config)
	for _, group := range settings {
		for name, value := range group {
			if _, set := cfg.ConnConfig.RuntimeParams[name]; !set {
				cfg.ConnConfig.RuntimeParams[name] = value
			}
		}
	}
	// Statements rely on a snapshot of their own. Neither the URL nor the settings of a database or a
	// role may change that.
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "read committed"
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

// Collect runs a query and reads its rows, each with to. Without rows it returns none.
func Collect[T any](ctx context.Context, q Queryer, to pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return pgx.CollectRows(Rows(ctx, q, sql, args...), to)
}

// Rows runs a query. A failure is the error of the rows: pgx.ForEachRow and pgx.CollectRows return it.
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

// Storable returns text without what PostgreSQL does not store: NUL is left out, and bytes that are
// not UTF-8 become U+FFFD.
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

// TransitionError says that a row cannot go from one state to another: the row was not in the state
// that its writer expected. Triggers of the database refuse the write.
type TransitionError struct{ Entity, From, To string }

// Transition returns err as a *TransitionError if that is what the server sent.
func Transition(err error) (*TransitionError, bool) {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "MLS01" {
		return nil, false
	}
	return &TransitionError{Entity: pgErr.TableName, From: pgErr.ColumnName, To: pgErr.ConstraintName}, true
}

// Unavailable reports whether err says that the database cannot be reached, is shutting down or is
// overloaded. The request can succeed later. Unless OutcomeUnknown(err), it has done nothing.
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

// outOfStep reports whether the server's messages did not fit the requests, as after a pooler has
// mixed up sessions. pgx has closed the connection, and has no type for the error.
func outOfStep(err error) bool {
	return err != nil && strings.Contains(err.Error(), "received unexpected message type")
}

// LoginRefused reports whether err says that the server refuses the account or has no such database.
// Waiting does not mend that.
func LoginRefused(err error) bool {
	code := Code(err)
	return strings.HasPrefix(code, "28") || code == "3D000"
}

// OutcomeUnknown reports whether err, which a COMMIT or an autocommitted statement returned, leaves
// open whether the transaction was committed. An ERROR of the server does not: it has rolled back.
// The FATAL error that ends a session can come after the COMMIT, and so can the loss of a
// connection.
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

// ConnectionLost reports whether err of a transaction says that the database cannot be reached, or
// that the outcome is unknown. A transaction that is safe to repeat is then tried again. A lock
// timeout is not such an error: the caller has waited long enough.
func ConnectionLost(err error) bool {
	return Code(err) == "" || Unavailable(err) && !LockTimeout(err)
}
