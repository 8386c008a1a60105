package reports

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

// Erase puts tombstones in the place of a person's name: in up to limit of its reports, and in all
// notes of operators. It returns how many rows it has changed; 0: none is left. What a report reveals
// stays sealed, and can still be opened.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (int64, error) {
	rows := pgpool.Rows(ctx, tx,
		`SELECT id, convo_id FROM abuse_reports WHERE reporter = $1 ORDER BY id LIMIT $2 FOR UPDATE`, p.DID, limit)
	var ids []uuid.UUID
	var names []string
	var id, convo uuid.UUID
	_, err := pgx.ForEachRow(rows, []any{&id, &convo}, func() error {
		ids, names = append(ids, id), append(names, p.In(convo).String())
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("find a person's reports: %w", err)
	}
	own, err := tx.Exec(ctx, `
		UPDATE abuse_reports r SET reporter = t.name FROM unnest($1::uuid[], $2::text[]) AS t (id, name) WHERE r.id = t.id`,
		ids, names)
	if err != nil {
		return 0, fmt.Errorf("erase a reporter: %w", err)
	}
	notes, err := tx.Exec(ctx, `
		UPDATE abuse_reports SET note = regexp_replace(note, $2, $3, 'g'), closed_by = regexp_replace(closed_by, $2, $3, 'g')
		WHERE strpos(note, $1) > 0 AND note ~ $2 OR strpos(closed_by, $1) > 0 AND closed_by ~ $2`, p.DID.String(),
		p.Pattern(), p.Anywhere())
	return own.RowsAffected() + notes.RowsAffected(), errs.Wrap(err, "erase a name from notes")
}
