package invariants

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// CheckParts is Check of a scope, with atOnce convos at a time.
func CheckParts(ctx context.Context, db *pgxpool.Pool, s Scope, atOnce int) (violations []string, err error) {
	v := verification{atOnce: atOnce}
	err = v.run(ctx, db, s)
	return v.list(), err
}
