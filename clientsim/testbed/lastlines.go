package testbed

import (
	"slices"
	"strings"
	"sync"
)

// LogSize is how much a server has written to its standard output and error.
type LogSize struct{ Lines, Bytes int64 }

// LogSize returns how much the server has written since NewProc.
func (p *Proc) LogSize() LogSize {
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	return p.log.total
}

// lastLines keeps the last lines of the server's output for an error message.
type lastLines struct {
	mu     sync.Mutex // guards what follows
	lines  []string
	keep   int
	failed []string // the first lines that say that a request failed
	total  LogSize
}

func newLastLines(keep int) *lastLines { return &lastLines{keep: keep} }

// Write implements io.Writer.
func (t *lastLines) Write(b []byte) (int, error) {
	t.add(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

func (t *lastLines) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
	if strings.Contains(line, `"msg":"request failed"`) && len(t.failed) < t.keep {
		t.failed = append(t.failed, line)
	}
	t.total.Lines += int64(strings.Count(line, "\n")) + 1
	t.total.Bytes += int64(len(line)) + 1
	if extra := len(t.lines) - t.keep; extra > 0 {
		t.lines = slices.Delete(t.lines, 0, extra)
	}
}

func (t *lastLines) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return "last output of the server:\n  " + strings.Join(t.lines, "\n  ")
}

// FailedRequests returns the first lines of the log that say that a request failed, as text. Other errors
// are many while everything fails, and are left out.
func (p *Proc) FailedRequests() string {
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	return strings.Join(p.log.failed, "\n  ")
}
