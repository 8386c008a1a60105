package reports

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/internal/worker"
)

// Listed is what the server knows about a report.
type Listed struct {
	ID       uuid.UUID  `json:"id"`
	Convo    uuid.UUID  `json:"convo"`
	Reporter syntax.DID `json:"reporter"`
	Reason   Reason     `json:"reason"`
	KeyID    string     `json:"keyId"`
	Bytes    int64      `json:"bytes"` // length of the sealed bytes; 0 if they were deleted
	At       time.Time  `json:"reportedAt"`
	State    State      `json:"state"`
	ClosedAt *time.Time `json:"closedAt,omitempty"`
	ClosedBy string     `json:"closedBy,omitempty"`
	Note     string     `json:"note,omitempty"` // why the report was closed
}

// Queue returns the open reports with ids above after, the oldest first.
func Queue(ctx context.Context, q pgpool.Queryer, after uuid.UUID, limit int) ([]Listed, error) {
	return collect(ctx, q, `
		SELECT id, convo_id, reporter, reason, key_id, octet_length(sealed), reported_at, state, closed_at,
			coalesce(closed_by, ''), coalesce(note, '')
		FROM abuse_reports WHERE state = 'open' AND id > $1 ORDER BY id LIMIT $2`, after, limit)
}

// Past returns the closed reports with ids below before, the newest first.
func Past(ctx context.Context, q pgpool.Queryer, before uuid.UUID, limit int) ([]Listed, error) {
	return collect(ctx, q, `
		SELECT id, convo_id, reporter, reason, key_id, octet_length(sealed), reported_at, state, closed_at,
			coalesce(closed_by, ''), coalesce(note, '')
		FROM abuse_reports WHERE state = 'closed' AND id < $1 ORDER BY id DESC LIMIT $2`, before, limit)
}

// Get returns one report. Error besides the database's: ErrNotFound.
func Get(ctx context.Context, q pgpool.Queryer, id uuid.UUID) (Listed, error) {
	found, err := collect(ctx, q, `
		SELECT id, convo_id, reporter, reason, key_id, octet_length(sealed), reported_at, state, closed_at,
			coalesce(closed_by, ''), coalesce(note, '')
		FROM abuse_reports WHERE id = $1`, id)
	if err == nil && len(found) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Listed{}, err
	}
	return found[0], nil
}

func collect(ctx context.Context, q pgpool.Queryer, sql string, args ...any) ([]Listed, error) {
	found, err := pgpool.Collect(ctx, q, pgx.RowToStructByPos[Listed], sql, args...)
	return found, errs.Wrap(err, "read the reports")
}

// Sealed is a report with its sealed bytes, which the operator's private key opens.
type Sealed struct {
	ID       uuid.UUID  `json:"id"`
	Convo    uuid.UUID  `json:"convo"`
	Reporter syntax.DID `json:"reporter"`
	KeyID    string     `json:"keyId"`
	Binding  []byte     `json:"binding"`
	Sealed   []byte     `json:"sealed"`
}

// Check returns an error unless the report is bound to the convo and the reporter that it names. If
// the reporter has been erased, the report cannot be checked.
func (s Sealed) Check() error {
	if !tombstone.Is(s.Reporter) && !bytes.Equal(s.Binding, Binding(s.Convo, s.Reporter)) {
		return errors.New("the report is bound to another convo or reporter than its row says")
	}
	return nil
}

// Fetch returns a report's sealed bytes. Errors besides the database's: ErrNotFound, ErrCleared.
func Fetch(ctx context.Context, q pgpool.Queryer, id uuid.UUID) (s Sealed, err error) {
	err = q.QueryRow(ctx, `SELECT id, convo_id, reporter, key_id, binding, sealed FROM abuse_reports WHERE id = $1`, id).
		Scan(&s.ID, &s.Convo, &s.Reporter, &s.KeyID, &s.Binding, &s.Sealed)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, ErrNotFound
	}
	if err != nil {
		return s, fmt.Errorf("read a report: %w", err)
	}
	if len(s.Sealed) == 0 {
		return s, ErrCleared
	}
	return s, nil
}

// Close closes a report. A repeated call changes nothing. Error besides the database's:
// ErrNotFound.
func Close(ctx context.Context, tx pgx.Tx, id uuid.UUID, operator, note string) (changed bool, err error) {
	tag, err := tx.Exec(ctx, `
		UPDATE abuse_reports SET state = 'closed', closed_at = clock_timestamp(), closed_by = $2, note = $3
		WHERE id = $1 AND state = 'open'`, id, operator, note)
	if err != nil {
		return false, fmt.Errorf("close a report: %w", err)
	}
	if tag.RowsAffected() == 0 {
		_, err = Get(ctx, tx, id)
	}
	return tag.RowsAffected() == 1, err
}

// Delete deletes a report and what it reveals. It returns how many reports it has deleted: one or
// none.
func Delete(ctx context.Context, tx pgx.Tx, id uuid.UUID) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM abuse_reports WHERE id = $1`, id)
	return tag.RowsAffected(), errs.Wrap(err, "delete a report")
}

// Clear deletes all open reports of a person, and returns how many it has deleted. Closed reports
// stay. There cannot be many: a quota bounds the reports of a day, and no report stays longer than
// Keep.
func Clear(ctx context.Context, tx pgx.Tx, reporter syntax.DID) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM abuse_reports WHERE reporter = $1 AND state = 'open'`, reporter)
	return tag.RowsAffected(), errs.Wrap(err, "delete a person's reports")
}

// Sweeps returns two sweeps. The first deletes reports that are older than Keep, open or closed.
// The second deletes the sealed bytes of reports that were closed more than KeepSealed ago. If the
// closed reports still have more than maxClosed bytes in all, the second sweep also deletes the
// bytes of the earliest closed reports. A maxClosed of 0 means no limit.
func Sweeps(db *pgxpool.Pool, maxClosed int64) []worker.Sweep {
	return []worker.Sweep{
		worker.Statement(db, "abuse_reports", `
			DELETE FROM abuse_reports WHERE id IN (
				SELECT id FROM abuse_reports WHERE reported_at < now() - $2::interval
				ORDER BY reported_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, Keep),
		worker.Statement(db, "abuse_reports_cleared", `
			UPDATE abuse_reports SET sealed = '' WHERE id IN (
				SELECT id FROM abuse_reports WHERE id = ANY (ARRAY(
					SELECT id FROM (
						SELECT id, closed_at, sum(greatest(octet_length(sealed), $4)) OVER (ORDER BY closed_at DESC, id DESC) AS total
						FROM abuse_reports WHERE state = 'closed' AND octet_length(sealed) > 0
					) closed
					WHERE closed_at < now() - $2::interval OR ($3 <> 0 AND total > $3) ORDER BY closed_at LIMIT $1
				)) FOR UPDATE SKIP LOCKED)`, KeepSealed, maxClosed, minCharge),
	}
}

// Erase replaces a person's name by the tombstone: in up to limit of the person's reports, and in
// all notes of operators. It returns how many rows it has changed. 0 means that none is left. What
// a report reveals stays sealed, and can still be opened.
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
