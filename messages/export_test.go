package messages

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"mlsd/outbox"
)

// WithoutEvents has the log leave no word of what it appends: for measuring what that costs.
func (l *Log) WithoutEvents() *Log {
	leave := "), left_word AS (" + outbox.NoteMessages + "\n\t)"
	if !strings.Contains(l.statement, leave) {
		panic("the statement leaves word in another way")
	}
	l.statement, l.one = strings.Replace(l.statement, leave, ")", 1), ""
	return l
}

// Bounds of the queue.
const (
	QueueDrafts = queueDrafts
	QueueBytes  = queueBytes
)

// Write is Append with a result for each draft, whatever has happened.
func (l *Log) Write(ctx context.Context, drafts ...Draft) []Result {
	return l.write(ctx, drafts, true)
}

// Queued is how many drafts wait for a transaction, and how many bytes.
func (l *Log) Queued() (drafts, bytes int) {
	l.sends.mu.Lock()
	defer l.sends.mu.Unlock()
	return l.sends.waiting, l.sends.bytes
}

// Idle reports whether no goroutine is at work, and no convo is waited for.
func (l *Log) Idle() bool {
	l.sends.mu.Lock()
	defer l.sends.mu.Unlock()
	return l.sends.running == 0 && len(l.sends.aside) == 0
}

// Aside reports whether a lane of its own waits for a convo.
func (l *Log) Aside(convo uuid.UUID) bool {
	l.sends.mu.Lock()
	defer l.sends.mu.Unlock()
	return l.sends.aside[convo] != nil
}

// SameShard reports whether two convos share a shard.
func (l *Log) SameShard(a, b uuid.UUID) bool {
	l.sends.mu.Lock()
	defer l.sends.mu.Unlock()
	return l.sends.laneOf(a) == l.sends.laneOf(b)
}

// What the tests of expiry need to know.
const (
	ExpireEntries = expireEntries
	LockSpace     = lockSpace
	ExpiryLock    = expiryLock
)

// IDOf is idOf.
var IDOf = idOf

// Restless has e work without a rest.
func (e *Expirer) Restless() *Expirer {
	e.pace = func(context.Context, time.Duration) {}
	return e
}

// InADay has e expire what is due by then, and a second.
func (e *Expirer) InADay() { e.ahead = 24*time.Hour + time.Second }
