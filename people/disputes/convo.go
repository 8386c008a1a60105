package disputes

import (
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/events/outbox"
	"mlsd/internal/errs"
	"mlsd/messages"
)

// locked is a convo under its row lock.
type locked struct {
	id      uuid.UUID
	creator syntax.DID
	epoch   int64
	lastSeq int64
}

// lock takes the row lock that orders all writers of a convo. Error: messages.ErrConvoNotFound.
func lock(ctx context.Context, tx pgx.Tx, convo uuid.UUID) (locked, error) {
	c := locked{id: convo}
	err := tx.QueryRow(ctx, `SELECT creator_did, epoch, last_seq FROM convos WHERE id = $1 FOR NO KEY UPDATE`, convo).
		Scan(&c.creator, &c.epoch, &c.lastSeq)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, messages.ErrConvoNotFound
	}
	return c, errs.Wrap(err, "lock the convo")
}

// member returns the convo's epoch to one of its members, and takes no lock. Errors:
// messages.ErrConvoNotFound, messages.ErrNotMember.
func member(ctx context.Context, tx pgx.Tx, convo uuid.UUID, did syntax.DID) (epoch int64, err error) {
	var left bool
	err = tx.QueryRow(ctx, `
		SELECT c.epoch, m.left_at IS NOT NULL FROM convos c JOIN members m ON m.convo_id = c.id AND m.did = $2 WHERE c.id =
			$1`, convo, did).
		Scan(&epoch, &left)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, messages.ErrConvoNotFound
	case err != nil:
		return 0, fmt.Errorf("look for the caller: %w", err)
	case left:
		return 0, messages.ErrNotMember
	}
	return epoch, nil
}

// tell inserts the event of a fork or of a dispute. The convo is locked, so that the event has its
// place among the convo's other events.
func (c locked) tell(ctx context.Context, tx pgx.Tx, change string, epoch int64, committer syntax.DID) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO outbox (kind, convo_id, seq, detail, created_at)
		VALUES ($1, $2, $3, jsonb_strip_nulls(jsonb_build_object('change', $4::text, 'epoch', $5::bigint, 'by',
			nullif($6::text, ''))), clock_timestamp())`,
		outbox.Dispute, c.id, c.lastSeq, change, epoch, committer)
	return errs.Wrap(err, "tell the members")
}

// Open returns the newest open dispute of a convo, nil if it has none.
func Open(ctx context.Context, tx pgx.Tx, convo uuid.UUID, caller syntax.DID) (d *Dispute, err error) {
	batch := &pgx.Batch{}
	QueueOpen(batch, convo, caller, &d)
	return d, errs.Wrap(tx.SendBatch(ctx, batch).Close(), "look for a dispute")
}

// QueueOpen is Open as a part of a batch. It sets d.
func QueueOpen(batch *pgx.Batch, convo uuid.UUID, caller syntax.DID, d **Dispute) {
	batch.Queue(`
		SELECT epoch, committer, ends_at, bool_or(committer = $2) OVER () AS caller FROM disputes
		WHERE convo_id = $1 AND state = 'open' AND ends_at > clock_timestamp() ORDER BY epoch DESC LIMIT 1`, convo, caller).
		Query(func(rows pgx.Rows) error {
			found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[Dispute])
			if len(found) > 0 {
				*d = found[0]
			}
			return err
		})
}

// QueueReports queues the question whether the caller reports a commit that is in dispute, and counts
// there. It sets reports.
func QueueReports(batch *pgx.Batch, convo uuid.UUID, caller syntax.DID, reports *bool) {
	batch.Queue(`
		SELECT EXISTS (
			SELECT FROM disputes d
			JOIN commit_reports r ON r.convo_id = d.convo_id AND r.epoch = d.epoch AND r.did = $2 AND r.settled_at IS NULL
			JOIN messages c ON c.convo_id = d.convo_id AND c.kind = 3 AND c.epoch = d.epoch
			JOIN members m ON m.convo_id = d.convo_id AND m.did = $2
			WHERE d.convo_id = $1 AND d.state = 'open' AND d.ends_at > clock_timestamp() AND m.joined_seq < c.seq
				AND m.left_at IS NULL AND m.requested_at IS NULL)`, convo, caller).
		QueryRow(func(row pgx.Row) error { return row.Scan(reports) })
}
