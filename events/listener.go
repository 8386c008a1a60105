package events

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
)

const (
	listenCheck   = 30 * time.Second // how long a listener can be silent before it is pinged
	listenTimeout = 3 * time.Second  // time limit to begin to listen, and for a ping
)

// listener is a session that gets the notifications of some channels. It is outside the pool, so
// that no other query gets a session that listens.
type listener struct {
	conn *pgx.Conn
	log  *slog.Logger
}

// newListener returns a listener of the channels that the statement names.
func newListener(ctx context.Context, db *pgxpool.Pool, log *slog.Logger, statement string) (*listener, error) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	pooled, err := db.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	l := &listener{pooled.Hijack(), log}
	if _, err := l.conn.Exec(ctx, statement); err != nil {
		l.close(ctx)
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// next waits for a notification, at most for limit. It returns nil if no notification came in this
// time, or if ctx has ended.
func (l *listener) next(ctx context.Context, limit time.Duration) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	n, err := l.conn.WaitForNotification(ctx)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return n, nil
}

// ping checks that the session is still there.
func (l *listener) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	return errs.Wrap(l.conn.Ping(ctx), "listen")
}

// close ends the session. It also works after ctx has ended.
func (l *listener) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := l.conn.Close(ctx); err != nil {
		l.log.DebugContext(ctx, "a listener was closed already", "error", err)
	}
}
