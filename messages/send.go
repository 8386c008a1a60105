package messages

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/serviceauth"
	"mlsd/internal/tracing"
	"mlsd/mls"
	"mlsd/people/quota"
)

// Draft is a message as its sender sends it. Epoch and Kind come from the ciphertext's own MLS
// header.
type Draft struct {
	ConvoID   uuid.UUID
	GroupID   []byte // from the ciphertext's header; must be the convo's group
	Sender    syntax.DID
	Key       string            // the client's idempotency key, or the one derived from the ciphertext; never empty
	Hash      [sha256.Size]byte // hash of the request's content (idem.Content.Hash): equal for equal requests
	Kind      mls.ContentType   // application or proposal
	Epoch     int64
	Body      []byte
	EmbedType *string
	EmbedURI  *string
	Token     *serviceauth.VerifiedToken // used up in the transaction that judges the draft; nil means no token
	Quota     *quota.Spending            // counts the message; nil means no quota

	// InvalidAsset is ErrInvalidAsset or nil. It is checked last, so that a retry still gets its
	// first answer.
	InvalidAsset error

	// Also, unless nil, queues statements that run after the append in the same transaction, even
	// if the draft is refused or is a repetition.
	Also func(*pgx.Batch)

	refusal error        // the refusal by InvalidAsset or Quota
	span    tracing.Span // of Send
}

// requestKey names a request to send a message.
type requestKey struct {
	convo  uuid.UUID
	sender syntax.DID
	key    string
}

func (d *Draft) requestKey() requestKey { return requestKey{d.ConvoID, d.Sender, d.Key} }

// Receipt is the answer to the sender of a message.
type Receipt struct {
	ID       uuid.UUID
	Seq      int64
	Epoch    int64
	At       time.Time // whole milliseconds
	Replayed bool      // an earlier request with the same key and content appended the message
}

// Result is the outcome of one draft. Err is nil if the message was appended. A refusal is
// ErrConvoNotFound, ErrNotMember, ErrConvoClosed, ErrWrongGroup, *EpochMismatchError,
// *quota.ExceededError, *idem.ConflictError or serviceauth.ErrReplayed. If the draft was not
// judged, Err is ErrBusy, idem.ErrInProgress, idem.ErrUnknownOutcome or an error of the database.
type Result struct {
	Receipt
	Err error
}

// Errors of sends that were not judged.
var (
	ErrBusy       = errors.New("the convo is being written")
	ErrHeld       = fmt.Errorf("%w, or another transaction holds the convo", idem.ErrInProgress)
	ErrOverloaded = errors.New("too many messages are waiting to be written")
	ErrClosed     = errors.New("the log is closed")
)

// Log appends messages.
type Log struct {
	db      *pgxpool.Pool
	batches *pgxpool.Pool // for transactions that messages share
	window  int64
	metrics idem.Metrics
	log     *slog.Logger
	faults  *failpoint.Set
	tracer  *tracing.Tracer
	onBatch func(drafts int)
	stream  Stream // nil: none
	lanes   lanes
	sends   sends
}

// Option changes a Log.
type Option func(*Log)

// WithShards sets how many transactions with messages can run at the same time, besides the
// transactions of busy convos.
func WithShards(n int) Option {
	return func(l *Log) { l.lanes.shards = l.newShards(n) }
}

// OnReserved runs shared transactions on a pool of their own, so that a batch of hundreds of
// messages does not wait for a connection behind single requests. The pool needs a connection for
// each shard, one for large messages, and busyLanes more.
func OnReserved(pool *pgxpool.Pool) Option {
	return func(l *Log) { l.batches = pool }
}

// OnBatch calls f with the number of drafts of every batch.
func OnBatch(f func(drafts int)) Option {
	return func(l *Log) { l.onBatch = f }
}

// Traced makes t remember the messages that traced requests append.
func Traced(t *tracing.Tracer) Option {
	return func(l *Log) { l.tracer = t }
}

// In makes the log tell a stream of its messages. Otherwise somebody else must wake the sequencer.
func In(s Stream) Option {
	return func(l *Log) { l.stream = s }
}

// NewLog returns a log on db. epochWindow is how many epochs a message may be behind its convo; 0
// means none. faults can be nil.
func NewLog(db *pgxpool.Pool, epochWindow int64, metrics idem.Metrics, log *slog.Logger, faults *failpoint.Set,
	options ...Option) *Log {
	l := &Log{
		db: db, batches: db, window: epochWindow, metrics: metrics, log: log, faults: faults, onBatch: func(int) {},
		sends: sends{keys: map[requestKey]int{}, idle: make(chan struct{})},
	}
	l.lanes = lanes{seed: maphash.MakeSeed(), shards: l.newShards(defaultShards()), large: l.newBatcher(false),
		slots: make(chan struct{}, busyLanes), busy: map[uuid.UUID]*lane{}}
	for _, o := range options {
		o(l)
	}
	return l
}

// duplicateTimeout is how long a request waits for an equal request that this node is writing. It
// equals lock_timeout, which bounds the wait for an equal request on another node.
const duplicateTimeout = 2 * time.Second

// Send appends one message, in a transaction that it shares with messages that arrive at the same
// time. It returns once the message is durable. The error is an error of a Result, ErrOverloaded,
// ErrClosed or the error of ctx. If ctx ends while the message waits, the message is not written.
// If ctx ends after that, the transaction continues.
func (l *Log) Send(ctx context.Context, d Draft) (Receipt, error) {
	ctx, span := tracing.Start(ctx, "append")
	defer span.End()
	d.span = span
	repeats, err := l.sends.begin(&d)
	if err != nil {
		return Receipt{}, err
	}
	defer l.sends.end(&d)
	if repeats {
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, duplicateTimeout, idem.ErrInProgress)
		defer cancel()
	}
	r, err := l.first(&d).Do(ctx, d)
	if errors.Is(r.Err, ErrBusy) {
		r, err = l.sendBusy(ctx, d)
	}
	switch {
	case err != nil && context.Cause(ctx) == idem.ErrInProgress:
		l.metrics.InProgress(nsid.SendMessage)
		return Receipt{}, idem.ErrInProgress
	case err != nil:
		return Receipt{}, err
	}
	return r.Receipt, r.Err
}

// Append writes drafts in one transaction and returns their results, in order, once the messages
// are durable. It waits for locked convos. If drafts could not be judged, it returns the error of
// the first such draft. Append is for callers with whole batches; use Send for one message.
func (l *Log) Append(ctx context.Context, drafts []Draft) ([]Result, error) {
	results := l.write(ctx, drafts, true)
	for _, r := range results {
		if r.Err != nil && !refused(r.Err) {
			return nil, fmt.Errorf("append: %w", r.Err)
		}
	}
	return results, nil
}

// Close refuses new messages and writes those that are waiting. It returns when all are written, or
// with ctx's error.
func (l *Log) Close(ctx context.Context) error { return l.sends.close(ctx) }
