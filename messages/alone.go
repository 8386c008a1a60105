package messages

import (
	"context"
	_ "embed"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/outbox"
)

// A message that is alone, because no other message waits on its node, is appended in one round
// trip, without a verdict of judge: its statements append it only if judge would. If they append
// nothing, they have written nothing, and the message goes the way of all others, where judge says
// why. So this way has no answers of its own, apart from success.

// Stream is the stream of events, as a Log needs it.
type Stream interface {
	// QueuePlace adds to the pipeline of its transaction the event of a message that the statement
	// before it may have appended to a convo: kind, and bytes of the body. If the message was
	// appended, and its event has got a place in the stream at once, QueuePlace calls placed with
	// that place, which is good once the transaction has committed. Otherwise the event is in the
	// outbox, or there is no message.
	QueuePlace(batch *pgx.Batch, convo uuid.UUID, kind outbox.Kind, size int, placed func(int64))
	// Placed says that a message of this node has got a place for good. It does not block.
	Placed(place int64)
	// Wake says that the outbox may have grown. It does not block.
	Wake()
}

// lockAlone locks the convo of a message, unless another transaction has locked it or the sender is
// not a member: see lockFreeConvos.
const lockAlone = `
	SELECT FROM convos
	WHERE id = (SELECT convo_id FROM members WHERE convo_id = $1 AND did = $2 AND left_at IS NULL)
	FOR NO KEY UPDATE SKIP LOCKED`

//go:embed alone.sql
var appendAlone string

// canGoAlone reports whether a batch is one message that appendAlone can append.
func (l *Log) canGoAlone(drafts []Draft) bool {
	return l.stream != nil && len(drafts) == 1 && drafts[0].refusal == nil && drafts[0].Also == nil
}

// alone appends a message that is alone. appended is false if nothing was written, and the message
// must be judged. After a *lostError the message may be appended.
func (l *Log) alone(ctx context.Context, d *Draft) (r Result, appended bool, err error) {
	began := time.Now()
	batch := &pgx.Batch{}
	batch.Queue(lockAlone, d.ConvoID, d.Sender)
	var token, expires, usable any
	if d.Token != nil {
		token, expires, usable = d.Token.ID(), d.Token.Expires(), d.Token.Expires().Add(serviceauth.LateUse)
	}
	refused := false
	batch.Queue(appendAlone, d.ConvoID, d.Sender, d.Key, d.Hash[:], int16(d.Kind), d.Epoch, d.GroupID, l.window, d.Body,
		d.EmbedType, d.EmbedURI, token, expires, usable).Query(func(rows pgx.Rows) error {
		var seq int64
		var at time.Time
		_, err := pgx.ForEachRow(rows, []any{&seq, &at}, func() error {
			r.Receipt, appended = receipt(d, seq, at, false), true
			return nil
		})
		refused = err == nil && !appended
		return err
	})
	var place int64
	l.stream.QueuePlace(batch, d.ConvoID, outbox.Kind(d.Kind), len(d.Body), func(at int64) { place = at })
	err = pgpool.SendTx(ctx, l.batches, batch, l.faults.Hook(ctx, failpoint.BeforeCommit, nsid.SendMessage))
	if appended && (err == nil || pgpool.OutcomeUnknown(err)) { // first, because the event can be handed out at once
		l.tracer.Wrote(d.ConvoID, r.Seq, d.span)
	}
	switch {
	case usedMeanwhile(err), refused && (err == nil || pgpool.OutcomeUnknown(err)):
		return Result{}, false, nil
	case place > 0 && err == nil:
		l.stream.Placed(place)
	default:
		l.stream.Wake()
	}
	if err == nil {
		err = l.faults.Hit(ctx, failpoint.AfterCommit, nsid.SendMessage)
	}
	if pgpool.OutcomeUnknown(err) {
		err = &lostError{err, began}
	}
	return r, appended, err
}
