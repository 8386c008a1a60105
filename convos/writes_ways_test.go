package convos_test

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/idem"
	"mlsd/welcome"
)

// waysOf is how the methods without a key write.
type waysOf struct {
	w       *writes
	cursors *convos.Cursors
}

func newWays(w *writes) waysOf { return waysOf{w, convos.NewCursors(w.db, nil)} }

func (w waysOf) do(ctx context.Context, nsid string, caller syntax.DID, effect func(ctx context.Context, tx pgx.Tx) error) error {
	_, err := w.w.store.Do(ctx, idem.Request{Caller: caller, NSID: nsid}, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		return nil, effect(ctx, tx)
	})
	return err
}

func (w waysOf) moveCursor(ctx context.Context, convo uuid.UUID, did syntax.DID, seq int64) error {
	_, err := w.cursors.Update(ctx, convo, did, seq)
	return err
}

func (w waysOf) fetch(ctx context.Context, convo uuid.UUID, to welcome.Device) error {
	return w.do(ctx, "blue.catbird.mls.getWelcome", to.DID, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := convos.Authorise(ctx, tx, convo, to.DID); err != nil {
			return err
		}
		_, err := w.w.policy.Fetch(ctx, tx, convo, to)
		return err
	})
}

func (w waysOf) confirm(ctx context.Context, convo uuid.UUID, to welcome.Device) error {
	return w.do(ctx, "blue.catbird.mls.confirmWelcome", to.DID, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := convos.Authorise(ctx, tx, convo, to.DID); err != nil {
			return err
		}
		_, err := w.w.policy.Confirm(ctx, tx, convo, to, true, "")
		return err
	})
}
