package convos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
)

// Of several members that commit in one epoch one wins, and RFC 9420 §14 leaves it open whether the others ever do: whoever is far
// away loses to whoever is near, every time. So a member that has lost patience races in a row, that is to say
// that so many epochs have gone by while it tried, gets a turn: the next commit
// is its own for as long as it takes to read the log and commit anew, and the commits of others wait until it is done or its time
// is over. After a turn that was taken, the next one goes to whoever has been losing for longest: who is fast loses more often. A turn that was not taken holds everybody up for nothing, so
// the member gets no other for a while.
const (
	patience    = 3
	turn        = 3 * time.Second
	contending  = 10 * time.Second // a member that lost its last race longer ago has given up
	noTurnAfter = 10 * time.Minute
)

// ReservedError says that the commit after Epoch is another member's to make for so long.
type ReservedError struct {
	Epoch int64
	Left  time.Duration
}

func (e *ReservedError) Error() string { return "the next commit is reserved for another member" }

// Reserved returns how much longer the commit after epoch is reserved for another member than the caller; 0 if it is not, or has
// been made. It is for those who wait, and takes no lock.
func Reserved(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, caller syntax.DID, epoch int64) (left time.Duration, err error) {
	err = q.QueryRow(ctx, `
		SELECT reserved_until - clock_timestamp() FROM convos
		WHERE id = $1 AND epoch = $3 AND reserved_for <> $2 AND reserved_until > clock_timestamp()`, convo, caller, epoch).Scan(&left)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for a reservation: %w", err)
	}
	return left, nil
}

// missed ends a turn that was not taken.
const missed = `
	WITH missed AS (
		UPDATE convos SET reserved_for = NULL, reserved_until = NULL
		FROM (SELECT id, reserved_for AS did FROM convos WHERE id = $1) old
		WHERE convos.id = old.id AND reserved_until <= clock_timestamp()
		RETURNING old.did
	)
	UPDATE members SET lost_races = 0, no_turn_until = clock_timestamp() + $2::interval
	FROM missed WHERE members.convo_id = $1 AND members.did = missed.did`

// Lost notes that the caller's commit, made in epoch, came too late, and gives the caller a turn if it has lost too often and nobody
// else has one. An epoch counts once: a commit made before the caller was last told where the convo is counts for nothing.
func Lost(ctx context.Context, db *pgxpool.Pool, convo uuid.UUID, caller syntax.DID, epoch int64) error {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`SELECT FROM convos WHERE id = $1 FOR NO KEY UPDATE`, convo)
		batch.Queue(missed, convo, noTurnAfter)
		batch.Queue(`
			WITH loser AS (
				UPDATE members m SET lost_races = m.lost_races + (c.epoch - $3)::integer, lost_at_epoch = c.epoch, lost_at = clock_timestamp(),
					lost_since = CASE m.lost_races WHEN 0 THEN clock_timestamp() ELSE m.lost_since END
				FROM convos c
				WHERE c.id = $1 AND m.convo_id = $1 AND m.did = $2 AND m.left_at IS NULL AND $3 < c.epoch
					AND (m.lost_at_epoch IS NULL OR m.lost_at_epoch <= $3)
				RETURNING m.lost_races, m.no_turn_until
			)
			UPDATE convos c SET reserved_for = $2, reserved_until = clock_timestamp() + $5::interval
			FROM loser
			WHERE c.id = $1 AND c.reserved_for IS NULL AND loser.lost_races >= $4
				AND (loser.no_turn_until IS NULL OR loser.no_turn_until <= clock_timestamp())`,
			convo, caller, epoch, patience, turn)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("note a lost race: %w", err)
	}
	return nil
}

// won ends the races of a member whose commit was accepted. If it was its turn, the next one goes to the member that has been losing
// for longest and still contends.
func (c *locked) won(batch *pgx.Batch, by syntax.DID) {
	batch.Queue(missed, c.id, noTurnAfter)
	batch.Queue(`
		UPDATE members SET lost_races = 0, lost_at_epoch = NULL WHERE convo_id = $1 AND did = $2 AND lost_races > 0`, c.id, by)
	batch.Queue(`
		UPDATE convos SET (reserved_for, reserved_until) = (
			SELECT min(next.did), min(clock_timestamp() + $4::interval)
			FROM (
				SELECT did FROM members
				WHERE convo_id = $1 AND lost_races >= $3 AND left_at IS NULL AND lost_at > clock_timestamp() - $5::interval
					AND (no_turn_until IS NULL OR no_turn_until <= clock_timestamp())
				ORDER BY lost_since LIMIT 1
			) next
		)
		WHERE id = $1 AND reserved_for = $2`, c.id, by, patience, turn, contending)
}
