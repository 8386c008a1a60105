package messages

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// Bounds of the messages that wait for their answers on this node.
const (
	maxSends     = 4096
	maxSendBytes = 64 << 20 // total size of their bodies; a message that is alone may be larger
)

// A node is busy while more than sendsPerCPU messages for each processor wait for their answers. It
// stays busy for busyFor after that, because a transaction answers all its messages together. At
// half of a node's greatest rate, a tenth of this number waits.
const (
	sendsPerCPU = 16
	busyFor     = 500 * time.Millisecond
)

// sends are the messages that wait for their answers.
type sends struct {
	mu      sync.Mutex // guards the fields below
	n       int
	bytes   int                // total size of their bodies
	keys    map[requestKey]int // number of waiting messages by key
	crowded time.Time          // when more than sendsPerCPU messages for each processor last waited
	closed  bool
	idle    chan struct{} // closed once the log is closed and no message waits
}

// begin counts a message, until end is called for the message. repeats says that another message
// with the same key waits. Errors: ErrOverloaded, ErrClosed.
func (s *sends) begin(d *Draft) (repeats bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return false, ErrClosed
	case s.n > 0 && (s.n >= maxSends || s.bytes+len(d.Body) > maxSendBytes):
		return false, ErrOverloaded
	}
	s.n++
	s.bytes += len(d.Body)
	s.keys[d.requestKey()]++
	if s.n > sendsPerCPU*runtime.GOMAXPROCS(0) {
		s.crowded = time.Now()
	}
	return s.keys[d.requestKey()] > 1, nil
}

func (s *sends) end(d *Draft) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
	s.bytes -= len(d.Body)
	if s.keys[d.requestKey()]--; s.keys[d.requestKey()] == 0 {
		delete(s.keys, d.requestKey())
	}
	s.finish()
}

// finish closes idle if the log is closed and no message waits.
func (s *sends) finish() {
	if s.closed && s.n == 0 {
		close(s.idle)
	}
}

func (s *sends) close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.finish()
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Crowded reports whether the node is so busy with messages that it drops signals.
func (l *Log) Crowded() bool {
	l.sends.mu.Lock()
	defer l.sends.mu.Unlock()
	return time.Since(l.sends.crowded) < busyFor
}
