package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Awaited are the migrations of whose additions no use is made while a node runs that does not know
// them. The sequencer's leader sets all of them required once there is no such node.
var Awaited = []uint{28, 31, 32}

// SetRequired records, in the table schema_support, whether an mlsd that does not know a migration
// can serve. What a migration adds is possibly in use at some times only.
func SetRequired(ctx context.Context, tx pgx.Tx, version uint, required bool) error {
	statement := `DELETE FROM schema_support WHERE version = $1`
	if required {
		statement = `INSERT INTO schema_support (version, min_binary) VALUES ($1, $1) ON CONFLICT DO NOTHING`
	}
	if _, err := tx.Exec(ctx, statement, version); err != nil {
		return fmt.Errorf("record which mlsd can serve: %w", err)
	}
	return nil
}
