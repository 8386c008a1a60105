package testbed

import (
	"slices"
	"strings"
	"sync"
)

// lastLines keeps the last lines of the server's output for an error message.
type lastLines struct {
	mu    sync.Mutex // guards lines
	lines []string
	keep  int
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
	if extra := len(t.lines) - t.keep; extra > 0 {
		t.lines = slices.Delete(t.lines, 0, extra)
	}
}

func (t *lastLines) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return "last output of the server:\n  " + strings.Join(t.lines, "\n  ")
}
