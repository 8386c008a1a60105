package transparency

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Keep stores the leaves of logs whose oldest messages are about to be deleted, so that the tree
// stays. It goes keepSteps further in each log, so that the first messages are soon deleted.
// Messages whose leaves are not stored are not deleted yet (messages/expire_batch.sql). Keep returns
// the convos without those whose tree is damaged, and logs the damaged trees. Nothing of such a
// convo may be deleted, because messages and leaves together show what happened.
func (s *Service) Keep(ctx context.Context, convos []uuid.UUID) (kept []uuid.UUID, err error) {
	for _, convo := range convos {
		ok, err := s.keep(ctx, convo)
		if err != nil {
			return nil, fmt.Errorf("keep the leaves of convo %s: %w", convo, err)
		}
		if ok {
			kept = append(kept, convo)
		}
	}
	return kept, nil
}

// keep returns ok = false if the tree is damaged, and an error if other convos would fail too.
func (s *Service) keep(ctx context.Context, convo uuid.UUID) (ok bool, err error) {
	t, found := s.trees.Peek(convo)
	if !found {
		t = newTree(convo) // the trees of requested heads stay in memory
	}
	if err := t.acquire(ctx); err != nil {
		return false, err
	}
	defer t.release()
	conn, err := s.cfg.DB.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	err = s.keepTree(ctx, conn, t)
	if err == nil || errors.Is(err, ErrNotReady) { // a long log needs several calls
		return true, nil
	}
	// A full disk is an error of PostgreSQL.
	if errors.As(err, new(*pgconn.PgError)) || ctx.Err() != nil || conn.Conn().IsClosed() {
		return false, err
	}
	t.forget()
	s.log.Error("cannot keep leaves: messages of the convo do not expire", "convo", convo, "err", err)
	return false, nil
}

// keepSteps is how many reads of one log precede a deletion. The first may only find that senders
// have no tag.
const keepSteps = 2

// keepTree makes keepSteps, and stores its last leaves too, which may be no complete tile. If they
// were not stored, a tree of large entries would never get on.
func (s *Service) keepTree(ctx context.Context, conn *pgxpool.Conn, t *tree) error {
	err := s.catchUp(ctx, conn, t, keepSteps, new(int64))
	if err != nil && !errors.Is(err, ErrNotReady) || !t.known || t.stored == t.edge.Size {
		return err
	}
	base := t.edge.Size - int64(len(t.tail))
	if stored := storeTile(ctx, conn, t.convo, base/tileHashes, t.tail); stored != nil {
		return stored
	}
	t.stored = t.edge.Size
	return err
}
