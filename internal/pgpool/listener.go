package pgpool

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

// ListenCheck is how long a listener can be silent before it is pinged.
const ListenCheck = 30 * time.Second

// listenTimeout is the time limit to begin to listen, and for a ping.
const listenTimeout = 3 * time.Second

// Listener is a session that gets the notifications of some channels. It is outside the pool, so
// that no other query gets a session that listens.
type Listener struct {
	Conn *pgx.Conn
	log  *slog.Logger
}

// Listen returns a listener of the channels that the statement names.
func Listen(ctx context.Context, db *pgxpool.Pool, log *slog.Logger, statement string) (*Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	pooled, err := db.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	l := &Listener{pooled.Hijack(), log}
	if _, err := l.Conn.Exec(ctx, statement); err != nil {
		l.Close(ctx)
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// Next waits for a notification, at most for limit. It returns nil if no notification came in this
// time, or if ctx has ended.
func (l *Listener) Next(ctx context.Context, limit time.Duration) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	n, err := l.Conn.WaitForNotification(ctx)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return n, nil
}

// Ping checks that the session is still there.
func (l *Listener) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	return errs.Wrap(l.Conn.Ping(ctx), "listen")
}

// Close ends the session. It also works after ctx has ended.
func (l *Listener) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := l.Conn.Close(ctx); err != nil {
		l.log.DebugContext(ctx, "a listener was closed already", "error", err)
	}
}
