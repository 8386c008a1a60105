package pgpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/internal/errs"
)

// ErrSharedSessions means that several connections share a session of the database. Then a lock
// would belong to no node, a LISTEN would end unnoticed, and settings would leak.
var ErrSharedSessions = errors.New("a pooler stands before the database and shares its sessions between connections " +
	"(PgBouncer: pool_mode = transaction or statement); mlsd needs sessions of its own: set pool_mode = session for " +
	"its database, " +
	"or connect to PostgreSQL directly")

// atStart are the parameters that are sent when a connection begins. PgBouncer accepts some of them
// there; the others cannot be set later.
var atStart = map[string]bool{
	"application_name": true, "client_encoding": true, "DateStyle": true, "datestyle": true, "TimeZone": true,
	"timezone":                    true,
	"standard_conforming_strings": true, "options": true, "replication": true,
}

// Connect makes one connection, also through a pooler.
func Connect(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	if err := SetLater(cfg); err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// Reach connects to the database at url, and waits for an answer.
func Reach(ctx context.Context, url string) (err error) {
	cfg, err := config(url, nil)
	if err != nil {
		return err
	}
	conn, err := Connect(ctx, cfg.ConnConfig)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return conn.Ping(ctx)
}

// SetLater makes a new connection set its session settings with a statement. PgBouncer refuses a
// connection that begins with settings such as lock_timeout. SetLater also bounds the time to
// connect and the time of the statement, because a host can hang between the two.
func SetLater(cfg *pgx.ConnConfig) error {
	boundConnect(&cfg.Config)
	later := map[string]string{transactionTimeout: "0"}
	for name, value := range cfg.RuntimeParams {
		if !atStart[name] {
			later[name] = value
			delete(cfg.RuntimeParams, name)
		}
	}
	settings, err := json.Marshal(later)
	if err != nil {
		return fmt.Errorf("encode the session settings: %w", err)
	}
	before := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if before != nil {
			if err := before(ctx, conn); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
		defer cancel()
		_, err := conn.ExecParams(ctx, `
			SELECT count(set_config(key, value, false)) FROM json_each_text($1)
			WHERE key <> $2 OR current_setting(key, true) IS NOT NULL`,
			[][]byte{settings, []byte(transactionTimeout)}, nil, nil, nil).Close()
		return errs.Wrap(err, "set the session's settings")
	}
	return nil
}

// poolerRounds is how often CheckSessions compares the sessions of two connections. If others use a
// pooler meanwhile, two connections can get different sessions by chance.
const poolerRounds = 8

// CheckSessions returns ErrSharedSessions unless conn has its own session of the database.
// PostgreSQL tells a connection the process id of its session when the connection begins. A pooler
// tells another number. Only if the number is another one, CheckSessions makes a second connection
// and compares.
func CheckSessions(ctx context.Context, conn *pgx.Conn) (err error) {
	session, err := sessionOf(ctx, conn)
	if err != nil || session == conn.PgConn().PID() {
		return err
	}
	other, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return fmt.Errorf("connect a second time: %w", err)
	}
	defer func() { err = errors.Join(err, other.Close(context.WithoutCancel(ctx))) }()
	for range poolerRounds {
		if err := compareSessions(ctx, session, conn, other); err != nil {
			return err
		}
	}
	return nil
}

// compareSessions keeps the session of other in a transaction, and compares it with the session of
// conn. session is the process id that conn had before.
func compareSessions(ctx context.Context, session uint32, conn, other *pgx.Conn) error {
	if _, err := other.PgConn().Exec(ctx, `BEGIN`).ReadAll(); err != nil {
		// With pool_mode = statement, PgBouncer closes a connection that begins a transaction.
		return fmt.Errorf("%w (%w)", ErrSharedSessions, err)
	}
	others, err := sessionOf(ctx, other)
	if err != nil {
		return err
	}
	if others == session {
		return ErrSharedSessions
	}
	now, err := sessionOf(ctx, conn)
	if err != nil {
		return err
	}
	if now != session {
		return ErrSharedSessions
	}
	_, err = other.PgConn().Exec(ctx, `ROLLBACK`).ReadAll()
	return errs.Wrap(err, "end the transaction")
}

// sessionOf returns the process id of the session that a statement gets. It prepares no statement,
// because a prepared statement would belong to one session.
func sessionOf(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	err = conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid, errs.Wrap(err, "read the session's number")
}
