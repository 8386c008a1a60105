package push

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/internal/tracing"
	"mlsd/outbox"
)

// NSIDFanout names the fan-out for failpoints.
const NSIDFanout = "mlsd.push.fanout"

// Bounds of one transaction of the fan-out: how many rows of push_convos it takes, and how many
// devices their messages are for in total. It takes the oldest row with any number of devices. A
// sender to one of these convos waits for the transaction.
const (
	fanoutConvos  = 32
	fanoutDevices = 2000
)

// takeConvos takes the oldest rows that fit, and says whether others are left. It counts the
// devices of each row separately, including devices of the sender and of people who have not
// accepted the convo.
const takeConvos = `
	WITH locked AS MATERIALIZED (
		SELECT convo_id, sender_did, created_at FROM push_convos ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED
	), counted AS MATERIALIZED (
		SELECT convo_id, sender_did, row_number() OVER w AS place, sum(devices) OVER w AS total
		FROM (
			SELECT locked.*, (
				SELECT count(*) FROM members m JOIN push_targets t ON t.did = m.did WHERE m.convo_id = locked.convo_id AND m.left_at
					IS NULL
			) AS devices
			FROM locked
		) l
		WINDOW w AS (ORDER BY created_at, convo_id, sender_did)
	)
	DELETE FROM push_convos p USING counted c
	WHERE (p.convo_id, p.sender_did) = (c.convo_id, c.sender_did) AND (c.place = 1 OR c.total <= $2)
	RETURNING p.convo_id, p.sender_did, p.created_at, (SELECT count(*) = $1 OR max(total) > $2 FROM counted)`

// beginFanout begins the transaction of the fan-out. Its lock_timeout is shorter than that of
// senders, which may wait for this transaction.
const beginFanout = `BEGIN; SET LOCAL lock_timeout = '500ms'`

// FanOut makes the jobs of the messages recorded in push_convos, in bounded transactions. It
// returns when the only rows left are locked by other workers, or after roundBatches transactions.
// more says that rows may be left.
func (w *Worker) FanOut(ctx context.Context) (more bool, err error) {
	for range roundBatches {
		left, err := w.fanOut(ctx)
		if err != nil {
			return false, fmt.Errorf("fan messages out: %w", err)
		}
		if !left {
			return false, nil
		}
	}
	return true, nil
}

// fanOut runs one transaction, and says whether rows may be left. It reads the members after it has
// taken the rows. A row that can be taken belongs to a committed message, so fanOut reads everyone
// who was a member at that time.
func (w *Worker) fanOut(ctx context.Context) (left bool, err error) {
	var convos, jobs []uuid.UUID
	var span tracing.Span
	defer func() { span.End() }()
	err = pgx.BeginTxFunc(ctx, w.cfg.DB, pgx.TxOptions{BeginQuery: beginFanout}, func(tx pgx.Tx) error {
		rows := pgpool.Rows(ctx, tx, takeConvos, fanoutConvos, fanoutDevices)
		var senders []syntax.DID
		var convo uuid.UUID
		var sender syntax.DID
		var at time.Time // when the transaction of the row's first message began
		var began []time.Time
		_, err := pgx.ForEachRow(rows, []any{&convo, &sender, &at, &left}, func() error {
			convos, senders, began = append(convos, convo), append(senders, sender), append(began, at)
			return nil
		})
		if err != nil || len(convos) == 0 {
			return err
		}
		var traced context.Context
		traced, span = tracing.Shared(ctx, "push fan-out", len(convos),
			func(i int) tracing.Span { return w.cfg.Tracer.WriterOf(convos[i], 0) })
		if jobs, err = outbox.MessageCalls(traced, tx, convos, senders, began); err != nil {
			return err
		}
		return w.cfg.Faults.Hit(ctx, failpoint.BeforeCommit, NSIDFanout)
	})
	if err != nil || len(convos) == 0 {
		return false, err
	}
	for _, job := range jobs {
		w.cfg.Tracer.Caused(job, span)
	}
	return left, w.cfg.Faults.Hit(ctx, failpoint.AfterCommit, NSIDFanout)
}
