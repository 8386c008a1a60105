package invariants

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// CheckPages makes a check in pages of one convo or person, and of at most size entries or events.
// It begins each page at the text of the cursor before, and calls after with the cursor of each.
func CheckPages(ctx context.Context, db *pgxpool.Pool, at Cursor, size int,
	after func(Cursor)) (all []string, err error) {
	for !at.Done() {
		v := verification{sizes: pageSizes{entries: int64(size), convos: 1, people: 1, events: size}}
		if at, err = ParseCursor(at.String()); err != nil {
			return nil, err
		}
		if at, err = v.page(ctx, db, at); err != nil {
			return nil, err
		}
		all = append(all, v.violations()...)
		after(at)
	}
	return all, nil
}
