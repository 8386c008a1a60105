package messages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Bounds of what an expirer does in one statement.
const (
	expireConvos  = 500  // that are looked at
	expireEntries = 2000 // that are passed, of all of them; they are a transaction
	expirePatient = 256  // of one convo, so that a busy one holds up no others
)

// Expirer deletes messages that have been kept for as long as the operator wants. Of all nodes on a database one expires at a time.
//
// Only application messages expire. Proposals and commits stay as long as the convo: they are few and small, and a device that was
// away has to go through all of them, epoch by epoch, or it never reads the group's messages again.
//
// A log expires from its beginning, and log_floors says how far: above the floor seq is dense, below it there are the handshakes. Since
// seq and created_at grow together, under the convo's row lock, what is due is a prefix, which the primary key finds: no index on
// created_at that every message would pay for. Nor is the convo locked: nobody else writes its oldest entries, or the floors.
type Expirer struct {
	db        *pgxpool.Pool
	log       *slog.Logger
	retention time.Duration
	expired   func(messages int64)
	ahead     time.Duration // of the database's clock: the tests' time goes by faster
	pace      func(ctx context.Context, took time.Duration)
}

// NewExpirer returns an expirer of what is older than retention. expired is told how many messages each transaction has deleted.
func NewExpirer(db *pgxpool.Pool, retention time.Duration, expired func(messages int64), log *slog.Logger) *Expirer {
	return &Expirer{db: db, log: log, retention: retention, expired: expired, pace: rest}
}

// rest has the expirer idle for as long as it has worked: it takes half of one connection at most, and less of a busy database.
func rest(ctx context.Context, took time.Duration) {
	timer := time.NewTimer(took)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Run expires every interval until ctx ends.
func (e *Expirer) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if _, err := e.RunOnce(ctx); err != nil && ctx.Err() == nil {
			e.log.ErrorContext(ctx, "old messages could not be removed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// expiryLock is the advisory lock of whoever expires, in the session in which it does.
const expiryLock = 2

// lockSpace is that of the sequencer's lock, too.
const lockSpace = 0x6d6c7364 // "mlsd"

// RunOnce looks at every convo, deletes what is due, and returns how many messages that was. If another node is at it there is nothing to
// do.
func (e *Expirer) RunOnce(ctx context.Context) (total int64, err error) {
	defer wrap(&err, "expire messages")
	conn, err := e.db.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	var mine bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, lockSpace, expiryLock).Scan(&mine); err != nil || !mine {
		return 0, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if _, unlockErr := conn.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, lockSpace, expiryLock); unlockErr != nil {
			err = errors.Join(err, unlockErr, conn.Conn().Close(ctx)) // the lock goes with the session
		}
	}()
	var cutoff time.Time
	err = conn.QueryRow(ctx, `SELECT clock_timestamp() + $1::interval - $2::interval`, e.ahead, e.retention).Scan(&cutoff)
	if err != nil {
		return 0, err
	}
	for after := (uuid.UUID{}); ; {
		begun := time.Now()
		due, last, err := dueConvos(ctx, conn.Conn(), after, cutoff)
		if err != nil {
			return total, err
		}
		e.pace(ctx, time.Since(begun))
		n, err := e.expire(ctx, conn.Conn(), due, cutoff)
		if total += n; err != nil || last == nil {
			return total, err
		}
		after = *last
	}
}

// dueConvos looks at the convos behind after, and returns those whose oldest message is due, and the last one that it has looked at. That
// is nil if there were no more.
func dueConvos(ctx context.Context, conn *pgx.Conn, after uuid.UUID, cutoff time.Time) (due []uuid.UUID, last *uuid.UUID, err error) {
	err = conn.QueryRow(ctx, `
		WITH seen AS MATERIALIZED (
			SELECT c.id, oldest.created_at < $2 AS due
			FROM (SELECT id FROM convos WHERE id > $1 ORDER BY id LIMIT $3) c
			LEFT JOIN LATERAL (SELECT seq FROM log_floors WHERE convo_id = c.id LIMIT 1) f ON true
			LEFT JOIN LATERAL (
				SELECT created_at FROM messages WHERE convo_id = c.id AND seq > coalesce(f.seq, 0) ORDER BY seq LIMIT 1
			) oldest ON true
		)
		SELECT coalesce(array_agg(id) FILTER (WHERE due), '{}'), (SELECT id FROM seen ORDER BY id DESC LIMIT 1) FROM seen`,
		after, cutoff, expireConvos).Scan(&due, &last)
	return due, last, err
}

// expire deletes what is due in convos, one transaction after the other.
func (e *Expirer) expire(ctx context.Context, conn *pgx.Conn, convos []uuid.UUID, cutoff time.Time) (total int64, err error) {
	for len(convos) > 0 {
		begun := time.Now()
		var gone int64
		var more []uuid.UUID
		if gone, more, err = expireBatch(ctx, conn, convos, cutoff); err != nil {
			return total, err
		}
		total += gone
		e.expired(gone)
		e.pace(ctx, time.Since(begun))
		convos = more
	}
	return total, nil
}

// expireBatch passes the oldest entries of convos, as many as a transaction may, and deletes the messages among them. It returns how many
// they were, and the convos that may have more.
//
// An entry is passed if all before it are old, too: were the clock ever set back, the log waits until the younger one is due.
func expireBatch(ctx context.Context, conn *pgx.Conn, convos []uuid.UUID, cutoff time.Time) (gone int64, more []uuid.UUID, err error) {
	err = conn.QueryRow(ctx, `
		WITH old AS MATERIALIZED (
			SELECT c.id AS convo_id, c.ord, coalesce(f.seq, 0) AS floor, entry.seq
			FROM unnest($1::uuid[]) WITH ORDINALITY AS c (id, ord)
			LEFT JOIN LATERAL (SELECT seq FROM log_floors WHERE convo_id = c.id LIMIT 1) f ON true
			CROSS JOIN LATERAL (
				SELECT seq FROM (
					SELECT seq, bool_and(created_at < $2) OVER (ORDER BY seq) AS old
					FROM messages WHERE convo_id = c.id AND seq > coalesce(f.seq, 0) ORDER BY seq LIMIT $4
				) entries WHERE old
			) entry
			LIMIT $3
		), passed AS MATERIALIZED (
			SELECT convo_id, ord, floor, max(seq) AS upto, count(*) AS n FROM old GROUP BY convo_id, ord, floor
		), total AS MATERIALIZED (
			SELECT sum(n) AS n, max(ord) AS last FROM passed
		), gone AS (
			DELETE FROM messages m USING passed p
			WHERE m.convo_id = p.convo_id AND m.seq > p.floor AND m.seq <= p.upto AND m.kind = 1
			RETURNING m.seq
		), raised AS (
			INSERT INTO log_floors (convo_id, seq) SELECT convo_id, upto FROM passed
			ON CONFLICT (convo_id) DO UPDATE SET seq = excluded.seq WHERE log_floors.seq < excluded.seq
		)
		SELECT (SELECT count(*) FROM gone), ARRAY(
			SELECT c.id FROM total, unnest($1::uuid[]) WITH ORDINALITY AS c (id, ord) LEFT JOIN passed p USING (ord)
			WHERE p.n = $4 OR (total.n = $3 AND c.ord >= total.last)
			ORDER BY p.n IS NOT NULL, c.ord)`, // those that had no turn come first
		convos, cutoff, expireEntries, expirePatient).Scan(&gone, &more)
	if err != nil {
		return 0, nil, fmt.Errorf("delete a batch: %w", err)
	}
	return gone, more, nil
}
