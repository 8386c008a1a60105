package load

import (
	"maps"
	"sync"
	"time"
)

// Operation is what became of one kind of request.
type Operation struct {
	Done   int64            `json:"done"`
	Failed map[string]int64 `json:"failed,omitempty"` // by error name
	// First is the first failure as text.
	First string `json:"first,omitempty"`
	// Latency has the latencies of the requests that are done. At a rate, a latency begins when its
	// request is due.
	Latency *Latency `json:"latency"`
}

// Failures counts the failures.
func (o *Operation) Failures() (sum int64) {
	for _, n := range o.Failed {
		sum += n
	}
	return sum
}

// Counter counts operations by name. It is safe for concurrent use. A nil Counter counts nothing.
type Counter struct {
	mu         sync.Mutex // guards operations
	operations map[string]*Operation
}

// NewCounter returns a counter that has counted nothing.
func NewCounter() *Counter { return &Counter{operations: map[string]*Operation{}} }

// operation returns the named operation. The caller holds the lock.
func (c *Counter) operation(name string) *Operation {
	op := c.operations[name]
	if op == nil {
		op = &Operation{Failed: map[string]int64{}, Latency: NewLatency()}
		c.operations[name] = op
	}
	return op
}

// Done counts an operation and its latency.
func (c *Counter) Done(name string, took time.Duration) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	op := c.operation(name)
	op.Done++
	op.Latency.Record(took)
}

// Fail counts an operation that failed. failure is the name of the error, and text is its message.
func (c *Counter) Fail(name, failure, text string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	op := c.operation(name)
	if op.Failed[failure]++; op.First == "" {
		op.First = text
	}
}

// Latencies returns a copy of the latencies of one operation so far.
func (c *Counter) Latencies(name string) *Latency {
	c.mu.Lock()
	defer c.mu.Unlock()
	copied := NewLatency()
	copied.Merge(c.operation(name).Latency.Histogram)
	return copied
}

// Operations returns everything that was counted, by name. All counting must have ended.
func (c *Counter) Operations() map[string]*Operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.operations)
}
