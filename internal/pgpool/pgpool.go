// Package pgpool opens the connection pool that every package of the server shares, and says what a database error means.
package pgpool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"
)

// settings bound what one session can cost. They are milliseconds.
var settings = map[string]string{
	"lock_timeout":                        "2000",  // a duplicate request waits this long for the first one
	"statement_timeout":                   "15000", // no statement of ours needs a tenth of it
	"idle_in_transaction_session_timeout": "15000", // a stopped node must not hold locks
	"timezone":                            "UTC",
	// Everything we ask is a handful of index look-ups. A planner that knows nothing yet of a young table, or keeps a plan from
	// when it was small, prefers scans whose cost grows with the table; these leave it no choice, and spare the planning.
	"plan_cache_mode":   "force_generic_plan",
	"enable_seqscan":    "off",
	"enable_bitmapscan": "off",
	"enable_hashjoin":   "off",
	"enable_mergejoin":  "off",
	"jit":               "off",
	"application_name":  "mlsd",
}

// Open returns a pool on the database at url. It does not wait for the database to answer.
func Open(ctx context.Context, url string) (*pgxpool.Pool, error) {
	cfg, err := Config(url)
	if err != nil {
		return nil, err
	}
	return open(ctx, cfg)
}

// OpenReserved is Open for what many requests share, a batch of messages say: it has few connections, and does not stand in line for
// them behind a thousand other requests.
func OpenReserved(ctx context.Context, url string) (*pgxpool.Pool, error) {
	cfg, err := Config(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = reservedConns
	return open(ctx, cfg)
}

func open(ctx context.Context, cfg *pgxpool.Config) (*pgxpool.Pool, error) {
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the database pool: %w", err)
	}
	return pool, nil
}

// reservedConns is the size of a reserved pool, whatever the URL says: the log's lanes, four and eight, and the uses of tokens.
const reservedConns = 13

// maxConns is the size of a pool whose URL does not say pool_max_conns: four connections for each processor, from 8 to 32. More are no
// faster where the database has as many processors as we have, and in a crowd each takes its share of them from the batches.
func maxConns() int32 { return int32(min(max(4*runtime.GOMAXPROCS(0), 8), 32)) }

// Config returns how Open connects to the database at url. Settings in the url win over ours.
func Config(url string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse the database URL: %w", err)
	}
	for name, value := range settings {
		if _, set := cfg.ConnConfig.RuntimeParams[name]; !set {
			cfg.ConnConfig.RuntimeParams[name] = value
		}
	}
	if !strings.Contains(url, "pool_max_conns") {
		cfg.MaxConns = maxConns()
	}
	return cfg, nil
}

// Queryer is what a read needs: a pool, a connection or a transaction.
type Queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Code returns the SQLSTATE of err, or "" if the server did not send one.
func Code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// LockTimeout reports whether err is a lock that was not had in time (55P03).
func LockTimeout(err error) bool { return Code(err) == "55P03" }

// TransitionError says that a state machine does not lead from one state to another: a row was not what its writer took it for. The
// database refuses the write, whoever makes it (migration 000004).
type TransitionError struct{ Entity, From, To string }

func (e *TransitionError) Error() string {
	return fmt.Sprintf("%s cannot go from %s to %s", e.Entity, e.From, e.To)
}

// Transition returns err as a *TransitionError if that is what the server sent.
func Transition(err error) (*TransitionError, bool) {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "MLS01" {
		return nil, false
	}
	return &TransitionError{Entity: pgErr.TableName, From: pgErr.ColumnName, To: pgErr.ConstraintName}, true
}

// Unavailable reports whether err says that the database cannot be reached, is going away or has no room: the request may
// succeed later and has, as far as err can tell, done nothing.
func Unavailable(err error) bool {
	if code := Code(err); code != "" {
		return code[:2] == "08" || code[:2] == "53" || code[:2] == "57" || code == "25006" || code == "25P03" ||
			code == "40P01" || code == "40001" || LockTimeout(err)
	}
	var netErr net.Error
	var connectErr *pgconn.ConnectError
	return errors.As(err, &connectErr) || errors.As(err, &netErr) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, puddle.ErrClosedPool) || pgconn.SafeToRetry(err) || pgconn.Timeout(err)
}
