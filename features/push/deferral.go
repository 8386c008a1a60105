package push

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/internal/errs"
)

// A connected device gets its events over the connection, so its job is deferred. But the
// connection can be dead without its node knowing. A deferred job stands for some messages and
// Welcomes. It ends without a call only if a connection of the device was certainly alive at the
// time heard_by, when all of them had been delivered. If no connection can have delivered all of
// them, the device is called.
//
//	message ── deliverWithin ──▶ heard_by ── DetectWithin ──▶ due ── reportWithin ──▶ called anyway
//	   └───────────────────────── deferFor ───────────────────▶
//
// Each further message moves heard_by and the due time, so that both apply to all messages of the
// job. A job whose heard_by is NULL is not deferred, and stays so: the device was not connected,
// its last connection has ended, or a call has failed.
//
// A connection without a cursor delivers nothing from before it began. It counts only if it began
// before heard_from, the start of the transaction of the job's oldest message or Welcome. In the
// table presence, since is the beginning of a connection with a cursor (infinity if there is none),
// and attached_since the beginning of any connection.
//
// At synced_at a node last stored which connections it believed alive. Such a connection was
// certainly alive DetectWithin before synced_at. synced_at is never later than the oldest event
// that the node has not yet handed to its connections.
//
// So a device that may have missed a message is called at once when its last connection ends. At
// the latest, it is called deferFor + reportWithin (60 s) after the last message.
const (
	// deliverWithin is the time from the statement that makes a job until the message or Welcome
	// has reached every live connection. It covers the rest of the transaction and the event
	// stream.
	deliverWithin = 9 * time.Second

	// catchUpWithin is the time from the start of a connection until it has delivered what the
	// device had missed. A connection that started later than this before heard_by does not count.
	catchUpWithin = 5 * time.Second

	// DetectWithin is the time within which a node must detect that a connection is dead. It is
	// longer than the time between two pings plus the time for an answer.
	DetectWithin = 36 * time.Second

	// deferFor is how long a job is deferred. A connection that is believed alive after that time
	// was alive at heard_by.
	deferFor = deliverWithin + DetectWithin

	// reportWithin is how long a due job waits for a report that the connection was alive at
	// heard_by. The node of the device's connection stores this report, but its event stream can be
	// delayed.
	reportWithin = 15 * time.Second
)

// CallDisconnected makes the deferred jobs of devices due, unless a device is connected to another
// node. The caller has deleted the presence of the devices earlier in the same transaction. dids
// and devices are parallel. Locked jobs are skipped, so that no node waits for a sender; they are
// called when they are due.
func CallDisconnected(ctx context.Context, tx pgx.Tx, dids []syntax.DID, devices []string) error {
	_, err := tx.Exec(ctx, `
		UPDATE push_jobs SET heard_by = NULL, next_attempt_at = clock_timestamp()
		WHERE (did, id) IN (
			SELECT j.did, j.id
			FROM unnest($1::text[], $2::text[]) AS d (did, device_id)
			JOIN push_jobs j ON j.did = d.did AND j.device_id = d.device_id AND j.state = 'pending'
			WHERE j.heard_by IS NOT NULL AND NOT EXISTS (
				SELECT FROM presence p JOIN nodes n ON n.id = p.node
				WHERE n.lease_expires_at > clock_timestamp() AND (p.did, p.device_id) = (d.did, d.device_id))
			FOR UPDATE OF j SKIP LOCKED)`, dids, devices)
	return errs.Wrap(err, "call disconnected devices")
}

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
			WHERE j.did = due.did AND j.id = due.id`, sweepBatch, catchUpWithin, DetectWithin).
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
