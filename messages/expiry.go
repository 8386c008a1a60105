package messages

import (
	"context"
	_ "embed"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

// Bounds of one statement of the sweeper.
const (
	expireConvos   = 500  // convos whose oldest message it reads
	expireTogether = 64   // convos whose old entries it deletes in one transaction
	expireEntries  = 2000 // old entries that it deletes in one transaction; each of the convos has the same share
)

// Sweeper deletes application messages that are older than the retention. Of the nodes that share a
// database, only one expires messages at a time.
//
// Proposals and commits stay as long as the convo. They are few and small, and a device that was
// away needs all of them.
//
// A log expires from its beginning. Its row of log_floors says how far: above the floor, seq has no
// gaps; below the floor are only proposals and commits. seq and created_at grow together under the
// convo's row lock, so the primary key finds the old messages without an index on created_at. The
// sweeper does not lock the convo, because nobody else writes a log's oldest entries and the
// floors.
type Sweeper struct {
	db        *pgxpool.Pool
	retention time.Duration
	expired   func(messages int64)
	ahead     time.Duration // added to the database's clock in tests
	// pace waits for as long as the work took, so that the sweeper uses half of one connection
	pace  func(ctx context.Context, took time.Duration)
	keep  keeper    // nil means that no leaves are stored
	after uuid.UUID // where the next round continues, if this round is cut short
}

// NewSweeper returns a sweeper of messages that are older than retention. It calls expired after
// each transaction, with the number of deleted messages.
//
// keep, unless nil, is called before messages are deleted. It stores their leaves in log_tiles, and
// returns the convos for which this succeeded. In these convos, the sweeper deletes the messages
// whose leaves are stored. In other convos, it deletes nothing.
func NewSweeper(db *pgxpool.Pool, retention time.Duration, expired func(messages int64), keep keeper) *Sweeper {
	return &Sweeper{db: db, retention: retention, expired: expired, pace: worker.Pause, keep: keep}
}

type keeper = func(ctx context.Context, convos []uuid.UUID) (kept []uuid.UUID, err error)

// RunOnce goes through all convos and deletes their old messages. It returns the number of deleted
// messages. It does nothing if another node is expiring messages.
func (e *Sweeper) RunOnce(ctx context.Context) (total int64, err error) {
	defer wrap(&err, "expire messages")
	err = pgpool.LockExpiry.Do(ctx, e.db, func(conn *pgx.Conn) error {
		total, err = e.round(ctx, conn)
		return err
	})
	return total, err
}

func (e *Sweeper) round(ctx context.Context, conn *pgx.Conn) (total int64, err error) {
	var cutoff time.Time
	err = conn.QueryRow(ctx, `SELECT clock_timestamp() + $1::interval - $2::interval`, e.ahead, e.retention).Scan(&cutoff)
	if err != nil {
		return 0, err
	}
	for {
		begun := time.Now()
		due, last, err := dueConvos(ctx, conn, e.after, cutoff)
		if err != nil {
			return total, err
		}
		e.pace(ctx, time.Since(begun))
		n, err := e.expire(ctx, conn, due, cutoff)
		if total += n; err != nil {
			return total, err
		}
		if last == nil {
			e.after = uuid.UUID{}
			return total, nil
		}
		e.after = *last
	}
}

// dueConvos reads the next convos, whose ids are above after. It returns the convos whose oldest
// message is older than cutoff, and the last convo that it has read, or nil if there are no more.
func dueConvos(ctx context.Context, conn *pgx.Conn, after uuid.UUID, cutoff time.Time) (due []uuid.UUID,
	last *uuid.UUID, err error) {
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

// expire deletes the old messages of convos, one transaction after the other. A convo that has more
// old messages than its share of a transaction comes again after the others.
func (e *Sweeper) expire(ctx context.Context, conn *pgx.Conn, convos []uuid.UUID, cutoff time.Time) (total int64,
	err error) {
	for len(convos) > 0 {
		begun := time.Now()
		n := min(len(convos), expireTogether)
		now, later := convos[:n], convos[n:]
		if e.keep != nil {
			if now, err = e.keep(ctx, now); err != nil {
				return total, err
			}
		}
		deleted, more, err := expireBatch(ctx, conn, now, cutoff, e.keep != nil)
		if err != nil {
			return total, err
		}
		total += deleted
		e.expired(deleted)
		e.pace(ctx, time.Since(begun))
		convos = slices.Concat(later, more)
	}
	return total, nil
}

// expireEntriesOf deletes the old messages among the oldest entries of convos.
//
//go:embed expire_batch.sql
var expireEntriesOf string

// expireBatch deletes old messages of at most expireTogether convos in one transaction. If onlyKept
// is true, it deletes only messages whose leaves are stored. It returns the number of deleted
// messages, and the convos that have more.
func expireBatch(ctx context.Context, conn *pgx.Conn, convos []uuid.UUID, cutoff time.Time,
	onlyKept bool) (deleted int64, more []uuid.UUID, err error) {
	share := expireEntries / max(len(convos), 1)
	err = conn.QueryRow(ctx, expireEntriesOf, convos, cutoff, share, onlyKept).Scan(&deleted, &more)
	return deleted, more, errs.Wrap(err, "delete a batch")
}
