package convos

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Of several members that commit in one epoch one wins, and RFC 9420 §14 leaves it open whether the others ever do: whoever is far
// away loses to whoever is near, every time. So a member that has lost patience races in a row has the next commit to itself for
// as long as it takes to read the log and commit anew; the commits of others wait until it is done or its time is over.
const (
	patience    = 3
	reservation = 3 * time.Second
)

// ReservedError says that the next commit is another member's to make for so long.
type ReservedError struct{ Left time.Duration }

func (e *ReservedError) Error() string { return "the next commit is reserved for another member" }

// Lost notes that the caller's commit, made in epoch, came too late. A race counts if the convo has moved on since the caller was
// last told where it is, so that nobody gets a turn by sending old commits. If two members have lost too often, the one that has
// lost more goes first.
func Lost(ctx context.Context, db *pgxpool.Pool, convo uuid.UUID, caller syntax.DID, epoch int64) error {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`SELECT FROM convos WHERE id = $1 FOR NO KEY UPDATE`, convo)
		batch.Queue(`
			WITH loser AS (
				UPDATE members m SET lost_races = m.lost_races + 1, lost_at_epoch = c.epoch
				FROM convos c
				WHERE c.id = $1 AND m.convo_id = $1 AND m.did = $2 AND m.left_at IS NULL AND $3 < c.epoch
					AND (m.lost_at_epoch IS NULL OR m.lost_at_epoch <= $3)
				RETURNING m.lost_races
			)
			UPDATE convos c SET reserved_for = $2, reserved_until = clock_timestamp() + $5::interval
			FROM loser
			WHERE c.id = $1 AND loser.lost_races >= $4 AND (c.reserved_for IS NULL OR c.reserved_until <= clock_timestamp()
				OR loser.lost_races > (SELECT lost_races FROM members WHERE convo_id = $1 AND did = c.reserved_for))`,
			convo, caller, epoch, patience, reservation)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("note a lost race: %w", err)
	}
	return nil
}

// won ends the races of a member whose commit was accepted, and with them its reservation.
func (c *locked) won(batch *pgx.Batch, by syntax.DID) {
	batch.Queue(`
		UPDATE members SET lost_races = 0, lost_at_epoch = NULL WHERE convo_id = $1 AND did = $2 AND lost_races > 0`, c.id, by)
	batch.Queue(`
		UPDATE convos SET reserved_for = NULL, reserved_until = NULL WHERE id = $1 AND reserved_for = $2`, c.id, by)
}
