package standby

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

// session is the time in which one standby follows one primary. It has a connection to each server,
// to ask for positions, and the pool for reads.
type session struct {
	primary, standby *pgx.Conn
	began            time.Time // when the standby's server began
	pool             *pgxpool.Pool
	promised         atomic.Int64 // a read of this session sees at least the WAL up to this position

	reads context.Context // ends with the session
	end   context.CancelFunc
	// denied is closed when the standby refused a read because the account lacks rights.
	denied chan struct{}
	deny   func()
}

// open connects to both servers. Errors: ErrOther, ErrNotStandby, ErrNoRights, errNotProven, errors
// of the connections.
func open(ctx context.Context, cfg Config) (*session, error) {
	connecting, cancel := context.WithTimeout(ctx, 4*answerTime) // each server is asked at most twice
	defer cancel()
	s := &session{denied: make(chan struct{})}
	s.deny = sync.OnceFunc(func() { close(s.denied) })
	s.reads, s.end = context.WithCancel(context.WithoutCancel(ctx))
	err := s.connect(connecting, cfg.Primary, cfg.Standby.ConnConfig)
	if err == nil {
		err = prove(connecting, s.primary, s.standby)
	}
	if err == nil {
		err = checkRights(connecting, s.primary, s.standby)
	}
	if err == nil {
		pool := cfg.Standby.Copy()
		pool.ConnConfig.ValidateConnect = s.validate
		pool.ConnConfig.ConnectTimeout, pool.PingTimeout = answerTime, answerTime
		s.pool, err = pgxpool.NewWithConfig(s.reads, pool)
	}
	if err != nil {
		s.end()
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

// connect makes the two connections, and compares the servers.
func (s *session) connect(ctx context.Context, primary, standby *pgx.ConnConfig) (err error) {
	if s.primary, err = dial(ctx, primary); err != nil {
		return fmt.Errorf("connect to the primary: %w", err)
	}
	if s.standby, err = dial(ctx, standby); err != nil {
		return fmt.Errorf("connect to the standby: %w", err)
	}
	s.began, err = compare(ctx, s.primary, s.standby)
	return err
}

func dial(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	cfg = cfg.Copy()
	cfg.ConnectTimeout = answerTime
	return pgpool.Connect(ctx, cfg)
}

// close ends the two connections.
func (s *session) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	var errs []error
	for _, conn := range []*pgx.Conn{s.primary, s.standby} {
		if conn != nil {
			errs = append(errs, conn.Close(ctx))
		}
	}
	return errors.Join(errs...)
}

// validate refuses a connection of the pool that leads to another server than the session's
// connection. A server whose processes have crashed starts again, and may have replayed less than
// before.
func (s *session) validate(ctx context.Context, conn *pgconn.PgConn) error {
	result := conn.ExecParams(ctx, `
		SELECT pg_is_in_recovery() AND pg_postmaster_start_time() = $1::timestamptz
			AND pg_last_wal_replay_lsn() - '0/0'::pg_lsn >= $2::bigint`,
		[][]byte{[]byte(s.began.Format(time.RFC3339Nano)), fmt.Append(nil, s.promised.Load())}, nil, nil, nil).Read()
	switch {
	case result.Err != nil:
		return fmt.Errorf("ask which standby this is: %w", result.Err)
	case len(result.Rows) != 1 || string(result.Rows[0][0]) != "t":
		return errors.New("it is not the standby that reads use")
	}
	return nil
}

// flushed is how far the WAL of the primary is flushed, in bytes. A transaction that others can see
// is flushed, unless commits do not wait for the flush. In that case, the query returns how far the
// WAL is written to memory.
const flushed = `
	SELECT (CASE current_setting('synchronous_commit') WHEN 'off' THEN pg_current_wal_insert_lsn() ELSE
		pg_current_wal_flush_lsn() END
		- '0/0'::pg_lsn)::bigint`

// replayed returns whether the server is a standby, and how far it has replayed the WAL, in bytes.
const replayed = `SELECT pg_is_in_recovery(), coalesce(pg_last_wal_replay_lsn() - '0/0'::pg_lsn, 0)::bigint`

// ask asks the primary how far its WAL is flushed. Then it asks the standby again and again until
// it has replayed as much, at most for answerTime. lag is how many bytes the standby lacks after
// that. Errors: ErrNotStandby, errors of the connections.
func (s *session) ask(ctx context.Context) (lag int64, err error) {
	begun := time.Now()
	upTo, err := s.flushed(ctx)
	if err != nil {
		return 0, err
	}
	for {
		if lag, err = s.lacks(ctx, upTo); err != nil {
			return 0, err
		}
		took := time.Since(begun)
		switch {
		case lag == 0:
			s.promised.Store(upTo)
			return 0, nil
		case took >= answerTime || ctx.Err() != nil:
			return lag, nil
		case took >= maxWait: // no read is waiting any more
			worker.Pause(ctx, slowPace)
		default:
			worker.Pause(ctx, pace)
		}
	}
}

func (s *session) flushed(ctx context.Context) (upTo int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err = s.primary.QueryRow(ctx, flushed).Scan(&upTo)
	return upTo, errs.Wrap(err, "ask the primary for its WAL")
}

// lacks returns how many bytes of the WAL up to a position the standby has not replayed.
func (s *session) lacks(ctx context.Context, upTo int64) (lag int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var (
		standby bool
		has     int64
	)
	if err := s.standby.QueryRow(ctx, replayed).Scan(&standby, &has); err != nil {
		return 0, fmt.Errorf("ask the standby for its WAL: %w", err)
	}
	if !standby {
		return 0, ErrNotStandby
	}
	return max(upTo-has, 0), nil
}

// read calls read with the pool. The context of read ends with the session, and after readTime.
func (s *session) read(ctx context.Context, read func(context.Context, *pgxpool.Pool) error) error {
	reading, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	defer context.AfterFunc(s.reads, cancel)()
	return read(reading, s.pool)
}

const insufficientPrivilege = "42501"

// failed reports whether err of a read is the standby's fault. The standby is lost, or it refused a
// statement because of what it replays (40001), or it cannot run the statement (0A000: it does not
// have tables without WAL).
func (s *session) failed(err error) bool {
	if pgpool.Code(err) == insufficientPrivilege {
		s.deny()
	}
	return s.reads.Err() != nil || pgpool.Code(err) != "" || pgpool.Unavailable(err)
}
