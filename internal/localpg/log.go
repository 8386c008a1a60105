package localpg

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// linePrefix makes a server log line "backend type|SEVERITY:  text".
const linePrefix = "%b|"

const (
	tailLines = 20          // kept for an error message
	tailWait  = time.Second // for the last lines of a server that has ended
)

// logSink turns the server's log into ours. It ends when the last process that holds the pipe does.
type logSink struct {
	log  *slog.Logger
	w    *os.File // the server's end
	done chan struct{}

	mu   sync.Mutex
	last []string // guarded by mu
}

func newLogSink(log *slog.Logger) (*logSink, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("log of PostgreSQL: %w", err)
	}
	l := &logSink{log: log, w: w, done: make(chan struct{})}
	go l.read(r)
	return l, nil
}

// childStarted closes our copy of the server's end.
func (l *logSink) childStarted() error { return l.w.Close() }

func (l *logSink) read(r *os.File) {
	defer close(l.done)
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			l.add(line)
		}
		if err != nil {
			break
		}
	}
	if err := r.Close(); err != nil {
		l.log.Warn("log of PostgreSQL", "error", err)
	}
}

func (l *logSink) add(line string) {
	level, backend, text := parseLine(line)
	l.mu.Lock()
	if l.last = append(l.last, text); len(l.last) > tailLines {
		l.last = l.last[1:]
	}
	l.mu.Unlock()
	l.log.Log(context.Background(), level, "postgres: "+text, "process", backend)
}

// parseLine gives a server log line its level. LOG is routine. An ERROR or FATAL of a client's session is the client's to report, and
// its text may quote values; one of a background process is news.
func parseLine(line string) (level slog.Level, backend, text string) {
	backend, text, ok := strings.Cut(line, "|")
	if !ok {
		return slog.LevelWarn, "", line // not from the logger: a library or the dynamic linker speaking
	}
	severity, _, _ := strings.Cut(text, ":")
	switch {
	case severity == "PANIC":
		level = slog.LevelError
	case backend == "client backend":
		level = slog.LevelDebug
	case severity == "FATAL", severity == "ERROR", severity == "WARNING":
		level = slog.LevelWarn
	default:
		level = slog.LevelDebug
	}
	return level, backend, text
}

// tail returns the last lines of a server that failed to start, waiting a moment for them to arrive.
func (l *logSink) tail() string {
	wait := time.NewTimer(tailWait)
	defer wait.Stop()
	select {
	case <-l.done:
	case <-wait.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last, "\n")
}
