package push

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/outbox"
)

// A job of a connected device is deferred: outbox/calls.go says for how long, and why.
const (
	// catchUpWithin is the time from the start of a connection until it has delivered what the
	// device had missed. A connection that started later than this before heard_by does not count.
	catchUpWithin = 5 * time.Second

	// reportWithin is how long a due job waits for a report that the connection was alive at
	// heard_by. The node of the device's connection stores this report, but its event stream can be
	// delayed.
	reportWithin = 15 * time.Second
)

// connected is the outcome of a job that ended without a call.
const connected = "connected"

// endConnected ends the due, deferred jobs of devices with a connection that was alive at heard_by,
// in bounded transactions. more says that jobs may be left.
func (w *Worker) endConnected(ctx context.Context) (more bool, err error) {
	for range roundBatches {
		var n int64
		batch := &pgx.Batch{} // one transaction
		batch.Queue(`SELECT set_config('mlsd.reason', $1, true)`, connected)
		batch.Queue(`
			UPDATE push_jobs j
			SET state = 'done', ended_at = clock_timestamp(), last_error = 'it was connected', version = version + 1
			FROM (
				SELECT did, id FROM push_jobs d
				WHERE state = 'pending' AND next_attempt_at <= now() AND heard_by IS NOT NULL AND EXISTS (
					SELECT FROM presence p JOIN nodes n ON n.id = p.node
					WHERE n.lease_expires_at > clock_timestamp() AND (p.did, p.device_id) = (d.did, d.device_id)
						AND (p.since <= d.heard_by - $2::interval OR p.attached_since <= d.heard_from) AND n.synced_at - $3::interval >=
							d.heard_by)
				ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED
			) due
			WHERE j.did = due.did AND j.id = due.id`, sweepBatch, catchUpWithin, outbox.DetectWithin).
			Exec(func(tag pgconn.CommandTag) error {
				n = tag.RowsAffected()
				return nil
			})
		if err := w.cfg.DB.SendBatch(ctx, batch).Close(); err != nil {
			return false, fmt.Errorf("end deferred push jobs: %w", err)
		}
		for range n {
			w.cfg.Metrics.PushEnded(connected)
		}
		if n < sweepBatch {
			return false, nil
		}
	}
	return true, nil
}
