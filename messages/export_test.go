package messages

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Bounds of the queue.
const (
	QueueDrafts = queueDrafts
	QueueBytes  = queueBytes
)

// Write is Append, but its errors are those of the drafts.
func (l *Log) Write(ctx context.Context, drafts ...Draft) []Result {
	return l.write(ctx, drafts, true)
}

// TryWrite is Write, but does not wait for convos that other transactions have locked.
func (l *Log) TryWrite(ctx context.Context, drafts ...Draft) []Result {
	return l.write(ctx, drafts, false)
}

// Lost is what becomes of drafts that the batch appends if its COMMIT is lost.
func (l *Log) Lost(ctx context.Context, began time.Time, drafts ...Draft) []Result {
	return l.resolve(ctx, drafts, make([]Result, len(drafts)), &lostError{context.Canceled, began})
}

// Queued returns how many drafts wait for a transaction, and the bytes of their bodies.
func (l *Log) Queued() (drafts, bytes int) {
	l.batcher.mu.Lock()
	defer l.batcher.mu.Unlock()
	return l.batcher.queued, l.batcher.bytes
}

// Idle reports whether no lane has a goroutine, and no convo has a lane of its own.
func (l *Log) Idle() bool {
	l.batcher.mu.Lock()
	defer l.batcher.mu.Unlock()
	return l.batcher.running == 0 && len(l.batcher.busy) == 0
}

// Busy reports whether convo has a lane of its own.
func (l *Log) Busy(convo uuid.UUID) bool {
	l.batcher.mu.Lock()
	defer l.batcher.mu.Unlock()
	return l.batcher.busy[convo] != nil
}

// SameShard reports whether two convos share a shard.
func (l *Log) SameShard(a, b uuid.UUID) bool {
	l.batcher.mu.Lock()
	defer l.batcher.mu.Unlock()
	return l.batcher.shardOf(a) == l.batcher.shardOf(b)
}

// Bounds of expiry.
const (
	ExpireConvos  = expireConvos
	ExpireEntries = expireEntries
)

// IDOf is idOf.
var IDOf = idOf

// Restless makes e work without pauses.
func (e *Sweeper) Restless() *Sweeper {
	e.pace = func(context.Context, time.Duration) {}
	return e
}

// InADay makes e expire what is due in a day and a second.
func (e *Sweeper) InADay() { e.ahead = 24*time.Hour + time.Second }

// Pace sets what e does instead of resting.
func (e *Sweeper) Pace(f func()) { e.pace = func(context.Context, time.Duration) { f() } }
