package welcome

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/worker"
)

// Sweeps returns sweeps that, in this order, end leases whose grace is over, expire old
// Welcomes, and erase bytes that are no longer needed. If silence counts as success, the end of a
// lease consumes the Welcome, unless the device has reported a failure.
func Sweeps(db *pgxpool.Pool, policy Policy) []worker.Sweep {
	consume := policy.OnExpiry == Consume
	bodies := &bodySweep{db: db}
	return []worker.Sweep{
		worker.Statement(db, "welcomes_consumed", `
			UPDATE welcomes SET state = 'consumed', confirmed_at = clock_timestamp(), silent = true, version = version + 1
			WHERE (convo_id, id) IN (
				SELECT convo_id, id FROM welcomes
				WHERE state = 'in_flight' AND grace_expires_at <= now() AND last_error IS NULL AND $2
				ORDER BY grace_expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, consume),
		worker.Statement(db, "welcomes_released", `
			UPDATE welcomes SET state = 'available', version = version + 1
			WHERE (convo_id, id) IN (
				SELECT convo_id, id FROM welcomes
				WHERE state = 'in_flight' AND grace_expires_at <= now() AND (last_error IS NOT NULL OR NOT $2)
				ORDER BY grace_expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, consume),
		worker.Statement(db, "welcomes_expired", `
			UPDATE welcomes SET state = 'expired', version = version + 1
			WHERE (convo_id, id) IN (
				SELECT convo_id, id FROM welcomes
				WHERE state IN ('available', 'in_flight') AND created_at <= now() - $2::interval
				ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, KeepUnfetched),
		{Rows: "welcome_bodies", Batch: bodies.batch},
	}
}

// looksPerRound bounds the statements of one round. Each examines worker.SweepRows Welcome bytes.
// Bytes stay for as long as a device can fetch them, so there can be many. A round continues where
// the last round ended.
const looksPerRound = 20

// bodySweep examines all Welcome bytes in the order of their age, and then begins again.
type bodySweep struct {
	db     *pgxpool.Pool
	looked place // place of the last bytes that were examined
	looks  int   // number of statements in this round
}

// place is a place in the order of Welcome bytes by age.
type place struct {
	createdAt time.Time
	convo     uuid.UUID
	epoch     int64
}

// eraseBytes examines some Welcome bytes, and erases the bytes that are due.
//
//go:embed erasebytes.sql
var eraseBytes string

func (s *bodySweep) batch(ctx context.Context) (erased int64, more bool, err error) {
	var looked int64
	var last place
	err = s.db.QueryRow(ctx, eraseBytes, worker.SweepRows, keepConsumedBytes, s.looked.createdAt, s.looked.convo,
		s.looked.epoch).
		Scan(&looked, &erased, &last.createdAt, &last.convo, &last.epoch)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, false, err
	}
	s.looked, s.looks = last, s.looks+1
	if looked < worker.SweepRows {
		s.looked, s.looks = place{}, 0
	}
	if s.looks == looksPerRound {
		s.looks = 0
		return erased, false, nil
	}
	return erased, looked == worker.SweepRows, nil
}
