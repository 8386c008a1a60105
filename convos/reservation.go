package convos

import (
	"context"
	"errors"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// Of several commits in one epoch, only one is accepted. RFC 9420 §14 does not promise that the
// others are ever accepted: a member with a slow connection can lose every time. So the server
// reserves the next commit for a member that has lost too often. During the reservation, the
// commits of other members wait. It ends when the member commits, or when its time is over.
//
// When a member uses its reservation, the next reservation goes to the member that has been losing
// for longest. When a member does not use its reservation, the others have waited for nothing. So
// that member gets no other reservation for a while.
const (
	lossesForReservation = 3                // commits of a member that came too late, in a row
	reservationTime      = 3 * time.Second  // enough to read the log and to commit again
	losersCompeteFor     = 10 * time.Second // a member that has not lost for that long is taken to have given up
	noReservationFor     = 10 * time.Minute // how long a member gets none after one that it did not use
)

// ReservedError says that the commit that ends Epoch is reserved for another member.
type ReservedError struct {
	Epoch int64
	Left  time.Duration // how much longer the commit is reserved
}

func (e *ReservedError) Error() string { return "the next commit is reserved for another member" }

// Reserved returns how much longer the commit that ends epoch is reserved for a member other than
// the caller. It returns 0 if there is no reservation, or if the epoch has ended. It takes no lock.
func Reserved(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, caller syntax.DID,
	epoch int64) (left time.Duration, err error) {
	err = q.QueryRow(ctx, `
		SELECT reserved_until - clock_timestamp() FROM convos
		WHERE id = $1 AND epoch = $3 AND reserved_for <> $2 AND reserved_until > clock_timestamp()`, convo, caller,
		epoch).Scan(&left)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return left, errs.Wrap(err, "look for a reservation")
}

// endUnusedReservation ends the reservation of the convo $1 if its time is over. The member that
// had it gets no other reservation for $2.
const endUnusedReservation = `
	WITH ended AS (
		UPDATE convos SET reserved_for = NULL, reserved_until = NULL
		FROM (SELECT id, reserved_for AS did FROM convos WHERE id = $1) old
		WHERE convos.id = old.id AND reserved_until <= clock_timestamp()
		RETURNING old.did
	)
	UPDATE members SET lost_races = 0, no_turn_until = clock_timestamp() + $2::interval
	FROM ended WHERE members.convo_id = $1 AND members.did = ended.did`

// RecordLoss records that the caller's commit, made in epoch, came too late. If the caller has lost
// too often and no reservation is running, the caller gets one. A commit counts as one lost race,
// however many epochs it is behind. An epoch counts once: a commit from before the caller's last
// loss does not count. During a dispute nothing counts, because the members for whom the others
// wait make external commits then. The count stops at the number that a reservation needs.
func RecordLoss(ctx context.Context, db *pgxpool.Pool, convo uuid.UUID, caller syntax.DID, epoch int64) error {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`SELECT FROM convos WHERE id = $1 FOR NO KEY UPDATE`, convo)
		batch.Queue(endUnusedReservation, convo, noReservationFor)
		batch.Queue(`
			WITH loser AS (
				UPDATE members m SET lost_races = least(m.lost_races, $4 - 1) + 1, lost_at_epoch = c.epoch, lost_at =
					clock_timestamp(),
					lost_since = CASE m.lost_races WHEN 0 THEN clock_timestamp() ELSE m.lost_since END
				FROM convos c
				WHERE c.id = $1 AND m.convo_id = $1 AND m.did = $2 AND m.left_at IS NULL AND $3 < c.epoch
					AND NOT EXISTS (SELECT FROM disputes WHERE convo_id = $1 AND state = 'open' AND ends_at > clock_timestamp())
					AND (m.lost_at_epoch IS NULL OR m.lost_at_epoch <= $3)
				RETURNING m.lost_races, m.no_turn_until
			)
			UPDATE convos c SET reserved_for = $2, reserved_until = clock_timestamp() + $5::interval
			FROM loser
			WHERE c.id = $1 AND c.reserved_for IS NULL AND loser.lost_races >= $4
				AND (loser.no_turn_until IS NULL OR loser.no_turn_until <= clock_timestamp())`,
			convo, caller, epoch, lossesForReservation, reservationTime)
		return tx.SendBatch(ctx, batch).Close()
	})
	return errs.Wrap(err, "record a lost commit")
}

// recordAccepted clears the losses of a member whose commit was accepted. If the member had the
// reservation, the next one goes to the member that has been losing for longest and still competes.
func (c *locked) recordAccepted(batch *pgx.Batch, by syntax.DID) {
	batch.Queue(endUnusedReservation, c.id, noReservationFor)
	batch.Queue(`
		UPDATE members SET lost_races = 0, lost_at_epoch = NULL WHERE convo_id = $1 AND did = $2 AND lost_races > 0`, c.id,
		by)
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
		WHERE id = $1 AND reserved_for = $2`, c.id, by, lossesForReservation, reservationTime, losersCompeteFor)
}
