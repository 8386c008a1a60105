package convos_test

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/convos"
	"mlsd/welcome"
)

// waysOf is how the methods without a key write.
type waysOf struct {
	w       *writes
	cursors *convos.Cursors
	desk    *welcome.Desk
}

func newWays(w *writes) waysOf {
	return waysOf{w, convos.NewCursors(w.db, nil), welcome.NewDesk(w.db, w.policy, nil)}
}

func (w waysOf) moveCursor(ctx context.Context, convo uuid.UUID, did syntax.DID, seq int64) error {
	_, err := w.cursors.Update(ctx, convo, did, seq)
	return err
}

func (w waysOf) fetch(ctx context.Context, convo uuid.UUID, to welcome.Device) error {
	_, err := w.desk.Fetch(ctx, convo, to)
	return err
}

func (w waysOf) confirm(ctx context.Context, convo uuid.UUID, to welcome.Device) error {
	_, err := w.desk.Confirm(ctx, convo, to, true, "")
	return err
}
