package transparency

import (
	"context"

	"github.com/google/uuid"

	"mlsd/internal/errs"
)

// Head returns the text of a signed head of the whole log of a convo, as it is now. The caller must
// have checked who asks. Head adds to hashed the number of bytes that it hashed, even if it fails.
// Errors: ErrNotReady, errors of the database.
func (s *Service) Head(ctx context.Context, convo uuid.UUID, hashed *int64) (head string, err error) {
	err = s.with(ctx, convo, hashed, func(t *tree) (err error) {
		head, err = s.sign(ctx, s.cfg.DB, t)
		return err
	})
	return head, errs.Wrap(err, "head of the log")
}

// with calls use, and passes it the tree of the whole log.
func (s *Service) with(ctx context.Context, convo uuid.UUID, hashed *int64, use func(*tree) error) error {
	t := s.treeOf(convo)
	if err := t.acquire(ctx); err != nil {
		return err
	}
	defer t.release()
	conn, err := s.cfg.DB.Acquire(ctx)
	if err != nil {
		return err
	}
	err = s.catchUp(ctx, conn, t, maxSteps, hashed)
	conn.Release()
	if err != nil {
		return err
	}
	return use(t)
}
