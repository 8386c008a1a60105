package attachments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

const (
	// UnfinishedLife is how long an upload waits for its next part. A failed attachment is shown
	// for as long.
	UnfinishedLife = 24 * time.Hour
	// orphanAge is how old an object must be before it counts as an orphan. A younger object that
	// no part names can belong to a running upload.
	orphanAge = 24 * time.Hour
	// retentionSlack covers the time between the completion of an attachment and the message with
	// its key, if the message does not name the attachment with embedUri.
	retentionSlack = time.Hour
	// SweepInterval is how often a round runs.
	SweepInterval = time.Minute
	// SweepTimeout bounds a round: its shares, and the work that still runs when a share ends.
	SweepTimeout = 3 * time.Minute
	// WakeDelay is how long a round waits after Wake, so that it serves many deletions.
	WakeDelay = 5 * time.Second

	sweepRows    = 500  // rows that one statement marks, or whose objects are deleted together
	sweepObjects = 1000 // objects that are listed together
	sweepLists   = 10   // lists in a round
	// deletions is how many objects are deleted at the same time.
	deletions = 8
)

// Sweeper deletes from the store the objects of deleted attachments (Sweeps marks these), and
// objects that no row names. Of the nodes of a database, one sweeps at a time, and only while the
// store belongs to the database (claim.go). A round that was cut off is done again.
type Sweeper struct {
	db      *pgxpool.Pool // maintenance pool
	store   Store
	service *Service
	log     *slog.Logger
	shares  shares
	listed  string         // the last object that was listed
	Wake    worker.Trigger // asks for a round, because an attachment was deleted
	other   string         // claim of another database, as this sweeper first saw it; "" if the store is ours

	// Where rounds continue. They go through all rows and objects again and again. Zero means the
	// beginning.
	clearedID   uuid.UUID // attachment of the last part that was to be deleted
	clearedPart int       // number of that part
}

// shares is how long each step of a round begins new work. The next round does the rest. So no step
// takes the time of the steps after it.
type shares struct{ clear, orphans time.Duration }

// NewSweeper returns a sweeper of the service's store.
func NewSweeper(db *pgxpool.Pool, s *Service, log *slog.Logger) *Sweeper {
	return &Sweeper{db: db, store: s.cfg.Store, service: s, log: log, Wake: worker.NewTrigger(),
		shares: shares{clear: 40 * time.Second, orphans: 20 * time.Second}}
}

// RunOnce runs one round. It does nothing if another node is sweeping.
func (s *Sweeper) RunOnce(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, SweepTimeout)
	defer cancel()
	return pgpool.LockAttachments.Do(ctx, s.db, func(conn *pgx.Conn) error {
		if owned, err := s.claim(ctx, conn); err != nil || !owned {
			return err
		}
		// If one step fails, the other still runs.
		return errors.Join(s.clear(ctx, conn), s.orphans(ctx, conn))
	})
}

// repeat calls a step until the step says that nothing is left, the step fails, or its share is
// over. end is the end of the share.
func repeat(ctx context.Context, share time.Duration, step func(end time.Time) (more bool, err error)) error {
	for end := time.Now().Add(share); time.Now().Before(end) && ctx.Err() == nil; {
		if more, err := step(end); err != nil || !more {
			return err
		}
	}
	return ctx.Err()
}

// Sweeps mark attachments as deleted: unfinished uploads without a recent part, failed attachments,
// and attachments older than the retention. A retention of 0 means for ever.
func Sweeps(db *pgxpool.Pool, retention time.Duration) []worker.Sweep {
	all := []worker.Sweep{worker.Statement(db, "attachments_unfinished", `
		UPDATE attachments SET state = 'deleted', touched_at = clock_timestamp()
		WHERE id IN (
			SELECT id FROM attachments
			WHERE state IN ('uploading', 'checking', 'failed') AND touched_at < now() - $2::interval
			ORDER BY touched_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, UnfinishedLife)}
	if retention == 0 {
		return all
	}
	return append(all, worker.Statement(db, "attachments_expired", `
		UPDATE attachments SET state = 'deleted', touched_at = clock_timestamp()
		WHERE id IN (
			SELECT id FROM attachments WHERE state = 'complete' AND kept_from < now() - $2::interval
			ORDER BY kept_from LIMIT $1 FOR UPDATE SKIP LOCKED)`, retention+retentionSlack))
}

// clear deletes the objects of deleted attachments, then the rows of their parts, and then the
// attachments' rows. If it cannot delete an object, it tries again the next time it comes to that
// object.
func (s *Sweeper) clear(ctx context.Context, conn *pgx.Conn) error {
	var failures []error
	err := repeat(ctx, s.shares.clear, func(end time.Time) (more bool, err error) {
		ids, objects, more, err := s.nextDeleted(ctx, conn)
		if err != nil {
			return false, err
		}
		gone, err := s.deleteAll(ctx, end, objects)
		if err != nil {
			failures = append(failures, err)
			more = more && len(gone) > 0 // otherwise the store cannot be reached
		}
		return more, s.forget(ctx, conn, ids, gone)
	})
	return errors.Join(append(failures, err)...)
}

// forget deletes the rows of parts whose objects are gone, and the rows of deleted attachments
// without parts.
func (s *Sweeper) forget(ctx context.Context, conn *pgx.Conn, ids []uuid.UUID, gone []string) error {
	if _, err := conn.Exec(ctx, `DELETE FROM attachment_parts WHERE object = ANY($1)`, gone); err != nil {
		return fmt.Errorf("delete parts: %w", err)
	}
	_, err := conn.Exec(ctx, `
		DELETE FROM attachments a
		WHERE id = ANY($1) AND state = 'deleted' AND NOT EXISTS (SELECT FROM attachment_parts WHERE attachment_id = a.id)`,
		ids)
	return errs.Wrap(err, "delete attachments")
}

// nextDeleted returns the next deleted attachments and the objects of their parts. After the last
// attachment, the next call begins from the start.
func (s *Sweeper) nextDeleted(ctx context.Context, conn *pgx.Conn) (ids []uuid.UUID, objects []string, more bool,
	err error) {
	rows := pgpool.Rows(ctx, conn, `
		SELECT a.id, coalesce(p.part, 0), p.object
		FROM attachments a LEFT JOIN attachment_parts p ON p.attachment_id = a.id
		WHERE a.state = 'deleted' AND a.id >= $1 AND (a.id > $1 OR p.part > $2)
		ORDER BY a.id, p.part LIMIT $3`, s.clearedID, s.clearedPart, sweepRows)
	var id uuid.UUID
	var part int
	var object *string
	tag, err := pgx.ForEachRow(rows, []any{&id, &part, &object}, func() error {
		if ids = append(ids, id); object != nil {
			objects = append(objects, *object)
		}
		return nil
	})
	if err != nil {
		return nil, nil, false, fmt.Errorf("look for deleted attachments: %w", err)
	}
	if more = tag.RowsAffected() == sweepRows; !more {
		id, part = uuid.Nil, 0
	}
	s.clearedID, s.clearedPart = id, part
	return ids, objects, more, nil
}

// deleteTimeout bounds the deletion of one object.
const deleteTimeout = 20 * time.Second

// deleteAll deletes objects until end, and returns the deleted ones. If it cannot delete an object,
// it still deletes the others, and returns the first error.
func (s *Sweeper) deleteAll(ctx context.Context, end time.Time, names []string) (gone []string, err error) {
	var mu sync.Mutex // guards gone
	var g errgroup.Group
	g.SetLimit(deletions)
	tried := 0
	for ; tried < len(names) && time.Now().Before(end) && ctx.Err() == nil; tried++ {
		name := names[tried]
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
			defer cancel()
			if err := s.store.Delete(ctx, name); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, name)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return gone, fmt.Errorf("%w: %d of %d objects were not deleted: %w", ErrStore, tried-len(gone), tried, err)
	}
	return gone, nil
}

// orphans looks at the next objects in the store, and deletes the old objects that no part names.
func (s *Sweeper) orphans(ctx context.Context, conn *pgx.Conn) error {
	prefix, err := s.service.objects(ctx)
	if err != nil {
		return err
	}
	lists := 0
	return repeat(ctx, s.shares.orphans, func(end time.Time) (more bool, err error) {
		lists++
		found, err := s.store.List(ctx, prefix, s.listed, sweepObjects)
		if err != nil {
			return false, fmt.Errorf("%w: list: %w", ErrStore, err)
		}
		if s.listed = ""; len(found) > 0 {
			s.listed = found[len(found)-1].Name
		}
		return len(found) > 0 && lists < sweepLists, s.deleteOrphans(ctx, conn, end, found)
	})
}

// deleteOrphans deletes the objects of found that are old and that no part names.
func (s *Sweeper) deleteOrphans(ctx context.Context, conn *pgx.Conn, end time.Time, found []Object) error {
	var old []string
	for _, o := range found {
		if time.Since(o.At) > orphanAge {
			old = append(old, o.Name)
		}
	}
	orphans, err := pgpool.Collect(ctx, conn, pgx.RowTo[string], `
		SELECT name FROM unnest($1::text[]) AS o (name)
		WHERE NOT EXISTS (SELECT FROM attachment_parts WHERE object = o.name)`, old)
	if err != nil {
		return fmt.Errorf("look for orphans: %w", err)
	}
	gone, err := s.deleteAll(ctx, end, orphans)
	if len(gone) > 0 {
		s.log.InfoContext(ctx, "objects that no attachment names were deleted", "objects", len(gone))
	}
	return err
}
