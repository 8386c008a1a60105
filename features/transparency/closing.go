package transparency

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// maxLocked bounds how often a log is read under its convo's lock. Each read has up to 16 MiB of
// bodies.
const maxLocked = 4

// Root returns the size and the root of the tree over the whole log of a convo, including what tx
// has appended. The caller's transaction holds the lock of the convo. Root reads the entries after
// the leaves that Keep has stored. Error: ErrNotReady, if there are too many such entries; then
// Keep stores more of them.
func Root(ctx context.Context, tx pgx.Tx, convo uuid.UUID) (size int64, root [sha256.Size]byte, err error) {
	t := newTree(convo)
	if err := begin(ctx, tx, t); err != nil {
		return 0, root, fmt.Errorf("root of the log: %w", err)
	}
	for range maxLocked {
		p, err := load(ctx, tx, t)
		if err != nil {
			return 0, root, fmt.Errorf("root of the log: %w", err)
		}
		if p == nil {
			return 0, root, fmt.Errorf("root of the log: no convo %s", convo)
		}
		if err := makeTags(ctx, tx, convo, p.unknown); err != nil {
			return 0, root, err
		}
		if _, err := t.take(p); err != nil {
			return 0, root, fmt.Errorf("root of the log: %w", err)
		}
		if t.edge.Size >= p.last {
			return t.edge.Size, t.edge.Root(), nil
		}
	}
	return 0, root, ErrNotReady
}
