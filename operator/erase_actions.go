package operator

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

// EraseActions puts the tombstone of a person into a part of the record of what operators have done.
func EraseActions(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE admin_actions
		SET subject = regexp_replace(subject, $4, $5, 'g'), reason = regexp_replace(reason, $4, $5, 'g'),
			operator = regexp_replace(operator, $4, $5, 'g')
		WHERE ctid >= $1::tid AND ctid < $2::tid
			AND (strpos(subject, $3) > 0 OR strpos(reason, $3) > 0 OR strpos(operator, $3) > 0)`,
		b.From, b.To, p.DID.String(), p.Pattern(), p.Anywhere())
	return tag.RowsAffected(), errs.Wrap(err, "erase a name from the record of actions")
}
