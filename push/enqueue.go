package push

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/failpoint"
	"mlsd/internal/tracing"
)

// enqueueSQL makes jobs.
//
//go:embed enqueue.sql
var enqueueSQL string

// QueueWelcome adds to the batch of a Welcome's transaction the statement that makes a job for each
// device that the Welcome is for. dids and devices are parallel. The caller leaves out people who
// have not accepted the convo.
func QueueWelcome(batch *pgx.Batch, dids []syntax.DID, devices []string) {
	batch.Queue(enqueueSQL, nil, nil, dids, devices, deliverWithin, deferFor, nil)
}

// NSIDFanout names the fan-out for failpoints.
const NSIDFanout = "mlsd.push.fanout"

// fanoutConvos is how many rows of push_convos one transaction takes. A sender to one of these
// convos waits for the transaction.
const fanoutConvos = 32

// beginFanout begins the transaction of the fan-out. Its lock_timeout is shorter than that of the
// senders that can wait for it.
const beginFanout = `BEGIN; SET LOCAL lock_timeout = '500ms'`

// FanOut makes the jobs of the messages recorded in push_convos, in bounded transactions. It
// returns when only rows are left that other workers have locked, or after roundBatches
// transactions. more says that rows are possibly left.
func (w *Worker) FanOut(ctx context.Context) (more bool, err error) {
	for range roundBatches {
		n, err := w.fanOut(ctx)
		if err != nil {
			return false, fmt.Errorf("fan messages out: %w", err)
		}
		if n < fanoutConvos {
			return false, nil
		}
	}
	return true, nil
}

// fanOut does one transaction. It reads the members after it has taken the rows. A row that can be
// taken belongs to a committed message, so everyone who was a member then is read.
func (w *Worker) fanOut(ctx context.Context) (n int, err error) {
	var jobs []uuid.UUID
	var span tracing.Span
	defer func() { span.End() }()
	err = pgx.BeginTxFunc(ctx, w.db, pgx.TxOptions{BeginQuery: beginFanout}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			DELETE FROM push_convos
			WHERE (convo_id, sender_did) IN (
				SELECT convo_id, sender_did FROM push_convos ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)
			RETURNING convo_id, sender_did, created_at`, fanoutConvos)
		if err != nil {
			return err
		}
		var convos []uuid.UUID
		var senders []syntax.DID
		var convo uuid.UUID
		var sender syntax.DID
		var at time.Time // when the transaction of the row's first message began
		var began []time.Time
		_, err = pgx.ForEachRow(rows, []any{&convo, &sender, &at}, func() error {
			convos, senders, began = append(convos, convo), append(senders, sender), append(began, at)
			return nil
		})
		if n = len(convos); err != nil || n == 0 {
			return err
		}
		var traced context.Context
		traced, span = tracing.Shared(ctx, "push fan-out", n, func(i int) tracing.Span { return w.tracer.WriterOf(convos[i], 0) })
		made, err := tx.Query(traced, enqueueSQL, convos, senders, nil, nil, deliverWithin, deferFor, began)
		if err != nil {
			return err
		}
		if jobs, err = pgx.CollectRows(made, pgx.RowTo[uuid.UUID]); err != nil {
			return err
		}
		return w.faults.Hit(ctx, failpoint.BeforeCommit, NSIDFanout)
	})
	if err != nil || n == 0 {
		return 0, err
	}
	for _, job := range jobs {
		w.tracer.Caused(job, span)
	}
	return n, w.faults.Hit(ctx, failpoint.AfterCommit, NSIDFanout)
}
