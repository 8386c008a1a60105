package tracing

import (
	"time"

	"github.com/google/uuid"
)

const (
	// maxCauses is how many traced writes a node remembers, so that the work that follows from a
	// write is in the write's trace. It remembers as many calls of devices.
	maxCauses = 1024
	// causeFor is how long a node remembers a cause.
	causeFor = time.Minute
)

// cause is a traced span that other work follows from.
type cause struct {
	span Span
	seq  int64
	at   time.Time
}

// Wrote remembers the span that appended a log entry to a convo.
func (t *Tracer) Wrote(convo uuid.UUID, seq int64, s Span) {
	if t != nil && s.Traced() {
		t.causes.Add(convo, cause{s, seq, time.Now()})
	}
}

// WriterOf returns the span that lately appended a log entry on this node. It returns the zero Span
// if the append was not traced, or if the convo has a newer traced entry. A seq of 0 means the
// newest traced entry.
func (t *Tracer) WriterOf(convo uuid.UUID, seq int64) Span {
	if t == nil || t.causes.Len() == 0 {
		return Span{}
	}
	c, found := t.causes.Peek(convo)
	if !found || seq != 0 && c.seq != seq || time.Since(c.at) > causeFor {
		return Span{}
	}
	return c.span
}

// Caused remembers the span that made a job.
func (t *Tracer) Caused(job uuid.UUID, s Span) {
	if t != nil && s.Traced() {
		t.calls.Add(job, cause{span: s, at: time.Now()})
	}
}

// MakerOf returns the span that made a job on this node, or the zero Span.
func (t *Tracer) MakerOf(job uuid.UUID) Span {
	if t == nil || t.calls.Len() == 0 {
		return Span{}
	}
	c, _ := t.calls.Peek(job)
	return c.span
}
