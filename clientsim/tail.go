package clientsim

import (
	"slices"
	"strings"
	"sync"
)

// tail keeps the last lines of the server's output, for a failure's report.
type tail struct {
	mu    sync.Mutex // guards lines
	lines []string
	keep  int
}

func newTail(keep int) *tail { return &tail{keep: keep} }

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.add(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
	if extra := len(t.lines) - t.keep; extra > 0 {
		t.lines = slices.Delete(t.lines, 0, extra)
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return "last output of the server:\n  " + strings.Join(t.lines, "\n  ")
}
