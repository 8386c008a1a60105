package push

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A connected device hears over its connection, so its job is deferred for 45 s. But a connection may be dead and nobody knows yet: that is
// found out within 36 s, by a missed ping. So a job ends without a call only if one connection is known to have been alive
// at heard_by, when all that the job stands for had been sent: 9 s after the last of it, which is time enough for its transaction to be
// committed, and for the stream; and that connection must have begun 5 s earlier, which is time enough for what it had missed. A node
// has told at synced_at which connections were not found out; those were alive 36 s before.
//
// Whatever else a deferred job takes in begins its 45 s anew and moves heard_by, so that it holds for all of it. Once something says that
// the device is away, the job is to be called and stays so (heard_by is NULL). When it is due it is called if there is no connection
// that was there at heard_by, and waits while there is one of which its node has yet to say that it lived: 15 s
// at most. A node's word (synced_at) is no newer than the oldest event that it has not handed to its connections. So a device is called at once when its last connection ends, and else within 60 s of the last thing that it is to hear.

// present selects the connections of a device: of (did, device_id), which is to follow, and at nodes whose lease has not lapsed. Package
// events owns both tables.
const present = `SELECT FROM presence p JOIN nodes n ON n.id = p.node
	WHERE n.lease_expires_at > clock_timestamp() AND (p.did, p.device_id) = `

const (
	// inTime is the condition that a connection had begun.
	inTime = `p.since <= d.heard_by - interval '5 seconds'`
	// longestWait is how long a job that is due waits for a node's word: that node's stream may stand still.
	longestWait = `interval '15 seconds'`
	// mayHaveHeard is the condition that the device of a deferred job d has heard, if its connection was alive.
	mayHaveHeard = `EXISTS (` + present + `(d.did, d.device_id) AND ` + inTime + `)`
	// hasHeard is that it was.
	hasHeard = `EXISTS (` + present + `(d.did, d.device_id) AND ` + inTime + ` AND n.synced_at - interval '36 seconds' >= d.heard_by)`
)

// CallGone is the end of the statement that deletes rows of presence: jobs that were deferred for them are due, unless the device is
// connected to another node too. It reads gone (did, device_id, node). Locked jobs are passed over, so that no node waits for
// a sender: they come when they are due.
const CallGone = `
	UPDATE push_jobs SET heard_by = NULL, next_attempt_at = clock_timestamp()
	WHERE (did, id) IN (
		SELECT j.did, j.id FROM gone JOIN push_jobs j ON j.did = gone.did AND j.device_id = gone.device_id AND j.state = 'pending'
		WHERE j.heard_by IS NOT NULL AND NOT EXISTS (` + present + `(gone.did, gone.device_id) AND p.node <> gone.node)
		FOR UPDATE OF j SKIP LOCKED)`

// connected is the outcome of a job whose device has heard of everything over its connection.
const connected = "connected"

// settle ends the deferred jobs that are due and whose devices have heard of it all, in bounded transactions.
func (w *Worker) settle(ctx context.Context) error {
	for {
		var n int64
		batch := &pgx.Batch{} // which is one transaction
		batch.Queue(`SELECT set_config('mlsd.reason', $1, true)`, connected)
		batch.Queue(`
			UPDATE push_jobs j
			SET state = 'done', ended_at = clock_timestamp(), last_error = 'it was connected', version = version + 1
			FROM (
				SELECT did, id FROM push_jobs d
				WHERE state = 'pending' AND next_attempt_at <= now() AND heard_by IS NOT NULL AND `+hasHeard+`
				ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED
			) due
			WHERE j.did = due.did AND j.id = due.id`, sweepBatch).
			Exec(func(tag pgconn.CommandTag) error {
				n = tag.RowsAffected()
				return nil
			})
		if err := w.db.SendBatch(ctx, batch).Close(); err != nil {
			return fmt.Errorf("end deferred push jobs: %w", err)
		}
		for range n {
			w.metrics.PushEnded(connected)
		}
		if n < sweepBatch {
			return nil
		}
	}
}
