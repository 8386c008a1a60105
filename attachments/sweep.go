package attachments

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

const (
	// UnfinishedLife is how long an upload waits for its next part. What has failed is shown as long.
	UnfinishedLife = 24 * time.Hour
	// orphanAge is how old an object must be that no part names. A younger one can belong to an upload
	// that is under way.
	orphanAge = 24 * time.Hour
	// retentionSlack covers the time between the completion of an attachment and the message that has
	// its key, if that message does not name it with embedUri.
	retentionSlack = time.Hour
	// SweepInterval is how often a round runs.
	SweepInterval = time.Minute
	sweepRows     = 200  // that a round marks, and whose objects it deletes
	sweepObjects  = 1000 // that a round lists
	// sweepTimeout bounds a round.
	sweepTimeout = 5 * time.Minute
)

// Sweeper deletes what is left over: uploads that nobody goes on with, attachments whose retention is
// over, the objects of what is deleted, and objects that no row names. One node of a database sweeps
// at a time, and only while the store belongs to its database (claim.go). A round that was cut off is
// done again.
type Sweeper struct {
	db        *pgxpool.Pool // for maintenance
	store     Store
	service   *Service
	retention time.Duration // 0: for ever
	log       *slog.Logger
	after     string    // the last object that was listed
	stuck     uuid.UUID // behind it a round begins: no object could be deleted of a whole round before
	woken     chan struct{}
	other     string // the claim of another database, as this sweeper first saw it; "": the store is ours
}

// NewSweeper returns a sweeper of the service's store. retention is that of messages; 0 is for ever.
func NewSweeper(db *pgxpool.Pool, s *Service, retention time.Duration, log *slog.Logger) *Sweeper {
	return &Sweeper{db: db, store: s.cfg.Store, service: s, retention: retention, log: log, woken: make(chan struct{}, 1)}
}

// Wake asks for a round: an attachment was deleted. It does not block.
func (s *Sweeper) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Woken is what Wake sends to.
func (s *Sweeper) Woken() <-chan struct{} { return s.woken }

// The advisory lock of the node that sweeps. It belongs to the session.
const (
	lockSpace = 0x6d6c7364 // "mlsd"
	lockSweep = 4
)

// RunOnce runs one round. It does nothing if another node sweeps.
func (s *Sweeper) RunOnce(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var locked bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, lockSpace, lockSweep).Scan(&locked); err != nil || !locked {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if _, unlockErr := conn.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, lockSpace, lockSweep); unlockErr != nil {
			err = errors.Join(err, unlockErr, conn.Conn().Close(ctx)) // the lock goes with the session
		}
	}()
	if owned, err := s.claim(ctx, conn.Conn()); err != nil || !owned {
		return err
	}
	// What one of them cannot delete keeps nothing else.
	return errors.Join(s.expire(ctx, conn.Conn()), s.clear(ctx, conn.Conn()), s.orphans(ctx, conn.Conn()))
}

// expire deletes what nobody goes on with, what is older than the retention, and what a node of an
// earlier version has left: it did not know attachments when it deleted their convo.
func (s *Sweeper) expire(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `
		UPDATE attachments SET state = 'deleted', touched_at = clock_timestamp()
		WHERE id IN (
			SELECT id FROM attachments
			WHERE state IN ('uploading', 'checking', 'failed') AND touched_at < clock_timestamp() - $1::interval
			ORDER BY touched_at LIMIT $2 FOR UPDATE SKIP LOCKED)`, UnfinishedLife, sweepRows)
	if err != nil {
		return fmt.Errorf("end unfinished uploads: %w", err)
	}
	_, err = conn.Exec(ctx, `
		UPDATE attachments SET state = 'deleted', touched_at = clock_timestamp()
		WHERE id IN (
			SELECT id FROM attachments a
			WHERE state <> 'deleted' AND NOT EXISTS (SELECT FROM convos WHERE id = a.convo_id)
			LIMIT $1 FOR UPDATE SKIP LOCKED)`, sweepRows)
	if err != nil {
		return fmt.Errorf("end attachments of deleted convos: %w", err)
	}
	if s.retention == 0 {
		return nil
	}
	_, err = conn.Exec(ctx, `
		UPDATE attachments SET state = 'deleted', touched_at = clock_timestamp()
		WHERE id IN (
			SELECT id FROM attachments WHERE state = 'complete' AND kept_from < clock_timestamp() - $1::interval
			ORDER BY kept_from LIMIT $2 FOR UPDATE SKIP LOCKED)`, s.retention+retentionSlack, sweepRows)
	if err != nil {
		return fmt.Errorf("end the retention: %w", err)
	}
	return nil
}

// clear deletes the objects of deleted attachments, and then their rows. An attachment with an object
// that cannot be deleted stays for a later round. Those behind it come first then.
func (s *Sweeper) clear(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT id FROM attachments WHERE state = 'deleted' AND id > $2 ORDER BY id LIMIT $1`, sweepRows, s.stuck)
	if err != nil {
		return fmt.Errorf("look for deleted attachments: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("look for deleted attachments: %w", err)
	}
	var failed []error
	s.stuck = uuid.Nil
	for _, id := range ids {
		if ctx.Err() != nil {
			break
		}
		parts, err := partsOf(ctx, conn, id)
		if err != nil {
			return err
		}
		if err := s.deleteAll(ctx, objectsOf(parts)); err != nil {
			failed = append(failed, err)
			if len(failed) == len(ids) && len(ids) == sweepRows { // a whole round is stuck
				s.stuck = id
			}
			continue
		}
		if _, err := conn.Exec(ctx, `DELETE FROM attachments WHERE id = $1 AND state = 'deleted'`, id); err != nil {
			return fmt.Errorf("delete an attachment: %w", err)
		}
	}
	return errors.Join(append(failed, ctx.Err())...)
}

func objectsOf(parts []partRow) []string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.object
	}
	return names
}

// deleteAll deletes objects. One that cannot be deleted does not keep the others.
func (s *Sweeper) deleteAll(ctx context.Context, names []string) error {
	var failed []error
	for _, name := range names {
		if err := s.store.Delete(ctx, name); err != nil {
			failed = append(failed, fmt.Errorf("%w: delete: %w", ErrStore, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// orphans deletes old objects that no part names, of the next ones in the store.
func (s *Sweeper) orphans(ctx context.Context, conn *pgx.Conn) error {
	prefix, err := s.service.objects(ctx)
	if err != nil {
		return err
	}
	found, err := s.store.List(ctx, prefix, s.after, sweepObjects)
	if err != nil {
		return fmt.Errorf("%w: list: %w", ErrStore, err)
	}
	var old []string
	for _, o := range found {
		if time.Since(o.At) > orphanAge {
			old = append(old, o.Name)
		}
	}
	rows, err := conn.Query(ctx, `
		SELECT name FROM unnest($1::text[]) AS o (name)
		WHERE NOT EXISTS (SELECT FROM attachment_parts WHERE object = o.name)`, old)
	if err != nil {
		return fmt.Errorf("look for orphans: %w", err)
	}
	orphans, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for orphans: %w", err)
	}
	err = s.deleteAll(ctx, orphans)
	if len(orphans) > 0 && err == nil {
		s.log.InfoContext(ctx, "objects that no attachment names were deleted", "objects", len(orphans))
	}
	s.after = ""
	if len(found) > 0 {
		s.after = found[len(found)-1].Name
	}
	return err
}
