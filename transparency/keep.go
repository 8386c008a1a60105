package transparency

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// Keep stores the leaves of logs whose oldest messages are about to be deleted, so that the tree stays.
// It goes on for a bounded time: what is not stored is not deleted yet (messages/expire_batch.sql).
func (s *Service) Keep(ctx context.Context, convos []uuid.UUID) error {
	for _, convo := range convos {
		// A long log takes several calls.
		if err := s.keep(ctx, convo); err != nil && !errors.Is(err, ErrNotReady) {
			return fmt.Errorf("keep the leaves of convo %s: %w", convo, err)
		}
	}
	return nil
}

func (s *Service) keep(ctx context.Context, convo uuid.UUID) error {
	t, ok := s.trees.Peek(convo)
	if !ok {
		t = newTree(convo) // the trees that heads are asked of stay in memory
	}
	if err := t.acquire(ctx); err != nil {
		return err
	}
	defer t.release()
	conn, err := s.cfg.DB.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err = s.catchUp(ctx, conn, t, mostSteps); err != nil {
		return err
	}
	if t.stored == t.edge.Size {
		return nil
	}
	base := t.edge.Size - int64(len(t.tail))
	if err := storeTile(ctx, conn, convo, base/tileHashes, t.tail); err != nil {
		return err
	}
	t.stored = t.edge.Size
	return nil
}
