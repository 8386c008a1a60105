package messages

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Bounds of the messages that wait.
const (
	MostSends     = maxSends
	MostSendBytes = maxSendBytes
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

// Queued returns how many drafts wait for a transaction.
func (l *Log) Queued() (drafts int) {
	for _, b := range append(l.lanes.shards[:len(l.lanes.shards):len(l.lanes.shards)], l.lanes.large) {
		drafts += b.Waiting()
	}
	return drafts
}

// Sending returns how many messages wait for their answers, and the bytes of their bodies.
func (l *Log) Sending() (n, bytes int) {
	l.sends.mu.Lock()
	defer l.sends.mu.Unlock()
	return l.sends.n, l.sends.bytes
}

// Idle reports whether no message waits, and no convo has a lane of its own.
func (l *Log) Idle() bool {
	n, _ := l.Sending()
	l.lanes.mu.Lock()
	defer l.lanes.mu.Unlock()
	return n == 0 && len(l.lanes.busy) == 0
}

// Busy reports whether convo has a lane of its own.
func (l *Log) Busy(convo uuid.UUID) bool {
	l.lanes.mu.Lock()
	defer l.lanes.mu.Unlock()
	return l.lanes.busy[convo] != nil
}

// SameShard reports whether two convos share a shard.
func (l *Log) SameShard(a, b uuid.UUID) bool { return l.shardOf(a) == l.shardOf(b) }

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
