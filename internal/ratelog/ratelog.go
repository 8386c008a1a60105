// Package ratelog bounds the log lines that unauthenticated callers can cause.
package ratelog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// Lines is how many records with the same message are written in each Every.
	Lines = 10
	// Every is the time after which Lines records may be written again.
	Every = 10 * time.Second
	// LeftOut is the attribute that says how many records were left out.
	LeftOut = "left_out"

	// maxMessages bounds the messages that are counted apart. All other messages are counted together.
	maxMessages = 256
)

// New returns a logger that writes to log, but at most Lines records with the same message in each
// Every. If it leaves records out, it writes one more record with the same message at the end. The
// attribute left_out of this record is the number of records that were left out. Its attribute
// error is that of the last of these records. Only the message's text decides whether two messages
// are the same.
func New(log *slog.Logger) *slog.Logger {
	return slog.New(&handler{next: log.Handler(), counts: &counts{next: log.Handler(), byMessage: map[string]*count{}}})
}

// handler is a slog.Handler that leaves records out.
type handler struct {
	next   slog.Handler
	counts *counts // shared with the handlers that WithAttrs and WithGroup return
}

// counts are the records of the last Every, by message. Each message has an Every of its own, which
// begins with its first record.
type counts struct {
	next slog.Handler // gets the numbers of records left out, without attributes of single records

	mu        sync.Mutex // guards what follows
	byMessage map[string]*count
}

// count counts the records with one message.
type count struct {
	written, leftOut int
	failure          []any // the attribute error of the last record left out; empty if it had none
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if !h.counts.add(r) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{next: h.next.WithAttrs(attrs), counts: h.counts}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{next: h.next.WithGroup(name), counts: h.counts}
}

// add counts a record and reports whether it may be written.
func (c *counts) add(r slog.Record) bool {
	message := r.Message
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.byMessage[message]
	if n == nil && len(c.byMessage) >= maxMessages {
		message = "other messages"
		n = c.byMessage[message]
	}
	if n == nil {
		n = &count{}
		c.byMessage[message] = n
		time.AfterFunc(Every, func() { c.end(r.Level, message) })
	}
	if n.written < Lines {
		n.written++
		return true
	}
	n.leftOut++
	n.failure = nil
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			n.failure = []any{a}
		}
		return n.failure == nil
	})
	return false
}

// end forgets the records with a message and writes how many were left out, if any. It ignores an
// error of the log, because the error could only go to the same log.
func (c *counts) end(level slog.Level, message string) {
	c.mu.Lock()
	n := c.byMessage[message]
	delete(c.byMessage, message)
	c.mu.Unlock()
	if n.leftOut == 0 {
		return
	}
	r := slog.NewRecord(time.Now(), level, message, 0)
	r.Add(LeftOut, n.leftOut)
	r.Add(n.failure...)
	_ = c.next.Handle(context.Background(), r)
}
