package push

import (
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/failpoint"
)

// enqueue makes jobs, deferred ones for devices that are connected. It reads told (did, device_id, reason), sorted by did and device_id so
// that nobody deadlocks. A pending job that is there already is locked until the commit, and becomes a Welcome's if this is one.
const enqueue = `
	INSERT INTO push_jobs (did, id, device_id, reason, heard_by, next_attempt_at, created_at)
	SELECT did, gen_random_uuid(), device_id, reason, CASE WHEN connected THEN at + interval '9 seconds' END,
		CASE WHEN connected THEN at + interval '45 seconds' ELSE at END, at
	FROM (
		SELECT told.*, EXISTS (` + present + `(told.did, told.device_id)) AS connected, clock_timestamp() AS at FROM told
	) told
	ORDER BY did, device_id
	ON CONFLICT (did, device_id) WHERE state = 'pending' DO UPDATE
	SET reason = CASE WHEN excluded.reason = 'welcome' THEN 'welcome' ELSE push_jobs.reason END,
		heard_by = CASE WHEN push_jobs.heard_by IS NOT NULL AND excluded.heard_by IS NOT NULL
			THEN greatest(push_jobs.heard_by, excluded.heard_by) END,
		next_attempt_at = CASE WHEN push_jobs.heard_by IS NULL THEN push_jobs.next_attempt_at ELSE excluded.next_attempt_at END,
		created_at = CASE WHEN push_jobs.heard_by IS NULL THEN push_jobs.created_at ELSE excluded.created_at END
	WHERE push_jobs.heard_by IS NOT NULL OR excluded.reason = 'welcome' AND push_jobs.reason <> 'welcome'`

// QueueWelcome adds to the batch of a Welcome's transaction what makes a job for each device that it is for. Where a device has no
// target of its own all of its owner's are told: a client need not name its devices as MLS does.
func QueueWelcome(batch *pgx.Batch, dids []syntax.DID, devices []string) {
	batch.Queue(`
		WITH told AS (
			SELECT DISTINCT t.did, t.device_id, 'welcome' AS reason
			FROM unnest($1::text[], $2::text[]) AS r (did, device_id)
			JOIN push_targets t ON t.did = r.did
			WHERE t.device_id = r.device_id
				OR NOT EXISTS (SELECT FROM push_targets o WHERE o.did = r.did AND o.device_id = r.device_id)
		)`+enqueue, dids, devices)
}

// NSIDFanout names the fan-out for failpoints.
const NSIDFanout = "mlsd.push.fanout"

// fanoutConvos bounds the convos of one transaction: whoever sends to one of them meanwhile waits for it.
const fanoutConvos = 32

// beginFanout begins its transaction. It waits less for others than others wait for it.
const beginFanout = `BEGIN; SET LOCAL lock_timeout = '500ms'`

// FanOut makes the jobs of the messages that were noted, in bounded transactions, until none is left that nobody else works on.
func (w *Worker) FanOut(ctx context.Context) error {
	for {
		n, err := w.fanOut(ctx)
		if err != nil {
			return fmt.Errorf("fan messages out: %w", err)
		}
		if n < fanoutConvos {
			return nil
		}
	}
}

// fanOut works one transaction. The members are read after the rows are taken: a message whose row is taken is committed, and with
// it everybody who was a member by then. The sender's own devices are not told: which of them it was is not known.
func (w *Worker) fanOut(ctx context.Context) (n int, err error) {
	err = pgx.BeginTxFunc(ctx, w.db, pgx.TxOptions{BeginQuery: beginFanout}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			DELETE FROM push_convos
			WHERE (convo_id, sender_did) IN (
				SELECT convo_id, sender_did FROM push_convos ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)
			RETURNING convo_id, sender_did`, fanoutConvos)
		if err != nil {
			return err
		}
		var convos []uuid.UUID
		var senders []syntax.DID
		var convo uuid.UUID
		var sender syntax.DID
		_, err = pgx.ForEachRow(rows, []any{&convo, &sender}, func() error {
			convos, senders = append(convos, convo), append(senders, sender)
			return nil
		})
		if n = len(convos); err != nil || n == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `
			WITH told AS (
				SELECT DISTINCT t.did, t.device_id, 'message' AS reason
				FROM unnest($1::uuid[], $2::text[]) AS n (convo_id, sender_did)
				JOIN members m ON m.convo_id = n.convo_id AND m.left_at IS NULL AND m.did <> n.sender_did
				JOIN push_targets t ON t.did = m.did
			)`+enqueue, convos, senders)
		if err != nil {
			return err
		}
		return w.faults.Hit(ctx, failpoint.BeforeCommit, NSIDFanout)
	})
	if err != nil || n == 0 {
		return 0, err
	}
	return n, w.faults.Hit(ctx, failpoint.AfterCommit, NSIDFanout)
}
