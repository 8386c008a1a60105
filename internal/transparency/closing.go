package transparency

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/transparency/verifier"
)

// maxLocked bounds the readings of a log under its convo's lock: 16 MiB of bodies each.
const maxLocked = 4

// Root returns the size and the root of the tree over the whole log of a convo, with what tx has
// appended to it. The caller's transaction holds the lock of the convo. It reads what is behind the
// leaves that Keep has stored. Error: ErrNotReady, if that is too much: Keep goes on with it.
func Root(ctx context.Context, tx pgx.Tx, convo uuid.UUID) (size int64, root verifier.Hash, err error) {
	t := newTree(convo)
	if err := begin(ctx, tx, t); err != nil {
		return 0, root, fmt.Errorf("root of the log: %w", err)
	}
	for range maxLocked {
		parts, err := load(ctx, tx, []*tree{t}, bounds{stepEntries, stepBytes, stepBytes})
		if err != nil {
			return 0, root, fmt.Errorf("root of the log: %w", err)
		}
		p := parts[convo]
		if p == nil {
			return 0, root, fmt.Errorf("root of the log: no convo %s", convo)
		}
		if err := makeTags(ctx, tx, parts); err != nil {
			return 0, root, err
		}
		if _, err := t.take(p, stepEntries); err != nil {
			return 0, root, fmt.Errorf("root of the log: %w", err)
		}
		if t.edge.Size >= p.last {
			return t.edge.Size, t.edge.Root(), nil
		}
	}
	return 0, root, ErrNotReady
}
