package requests

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
)

// maxRows bounds the table, whatever Config.Keep says: the newest are kept.
const maxRows = 1_000_000

// Sweep deletes the rows that are too old, or too many. Ids are in the order of time, but for the
// interval of the writers.
func (r *Recorder) Sweep() worker.Sweep {
	return worker.Statement(r.cfg.DB, "requests", `
		DELETE FROM requests
		WHERE id IN (SELECT id FROM requests ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
			AND (at < now() - $2::interval OR id <= (SELECT max(id) FROM requests) - $3)`, r.cfg.Keep, maxRows)
}

// Erase deletes, in a part of the table, the requests of an account, and those of others whose row
// names it. The transaction must be one of maintenance.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM requests
		WHERE ctid >= $1::tid AND ctid < $2::tid
			AND (caller_did = $3 OR strpos(message, $3) > 0 OR strpos(key, $3) > 0 OR strpos(request_id, $3) > 0 OR
				strpos(detail::text, $3) > 0)`,
		b.From, b.To, p.DID.String())
	return tag.RowsAffected(), errs.Wrap(err, "erase requests")
}
