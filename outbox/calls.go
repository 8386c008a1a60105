package outbox

import (
	"context"
	_ "embed"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
)

// A connected device gets its events over the connection, so the job that calls it is deferred. But
// the connection can be dead without its node knowing. A deferred job stands for some messages and
// Welcomes. It ends without a call only if a connection of the device was certainly alive at the
// time heard_by, when all of them had been delivered. If no connection can have delivered all of
// them, package push calls the device.
//
//	message ── deliverWithin ──▶ heard_by ── DetectWithin ──▶ due ── reportWithin of push ──▶ called anyway
//	   └───────────────────────── deferFor ───────────────────▶
//
// Each further message moves heard_by and the due time, so that both apply to all messages of the
// job. A job whose heard_by is NULL is not deferred, and stays so: the device was not connected,
// its last connection has ended, or a call has failed.
//
// A connection without a cursor delivers nothing from before it began. So it counts only if it began
// before the transaction of the job's oldest message or Welcome began (heard_from). In the table
// presence, since is the beginning of a connection with a cursor (infinity if there is none),
// and attached_since the beginning of any connection.
//
// At synced_at a node last stored which connections it believed alive. Such a connection was
// certainly alive DetectWithin before synced_at. synced_at is never later than the oldest event
// that the node has not yet handed to its connections.
//
// So a device that may have missed a message is called at once when its last connection ends. At
// the latest, it is called deferFor and reportWithin (60 s) after the last message.
const (
	// deliverWithin is the time from the statement that makes a job until the message or Welcome
	// has reached every live connection. It covers the rest of the transaction and the event
	// stream.
	deliverWithin = 9 * time.Second

	// DetectWithin is the time within which a node must detect that a connection is dead. It is
	// longer than the time between two pings plus the time for an answer.
	DetectWithin = 36 * time.Second

	// deferFor is how long a job is deferred. A connection that is believed alive after that time
	// was alive at heard_by.
	deferFor = deliverWithin + DetectWithin
)

// callSQL makes jobs, and returns their ids.
//
//go:embed call.sql
var callSQL string

// QueueWelcomeCalls adds to the batch of a Welcome's transaction the statement that makes a job for
// each device that the Welcome is for. dids and devices are parallel. The caller leaves out people
// who have not accepted the convo.
func QueueWelcomeCalls(batch *pgx.Batch, dids []syntax.DID, devices []string) {
	batch.Queue(callSQL, nil, nil, dids, devices, deliverWithin, deferFor, nil)
}

// MessageCalls makes a job for each device to call because of messages, and returns the jobs' ids.
// The slices are parallel: convo and sender of messages, and when the transaction of the oldest of
// them began.
func MessageCalls(ctx context.Context, tx pgx.Tx, convos []uuid.UUID, senders []syntax.DID, began []time.Time) (
	jobs []uuid.UUID, err error) {
	rows, err := tx.Query(ctx, callSQL, convos, senders, nil, nil, deliverWithin, deferFor, began)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

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
