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
	tailLines = 20          // lines of the log in an error message
	tailWait  = time.Second // wait for the last lines of a server that ended
)

// logSink writes the server's log to a slog.Logger. It ends when the last process with the pipe
// ends.
type logSink struct {
	log  *slog.Logger
	w    *os.File // the server's end of the pipe
	done chan struct{}

	mu   sync.Mutex
	last []string // protected by mu
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

// childStarted closes this process's copy of the server's end of the pipe.
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

// parseLine returns the level of a line of the server's log. LOG is routine. The client reports an
// ERROR or FATAL of its own session, and the text can contain values, so that it gets the level
// Debug. An ERROR or FATAL of a background process gets the level Warn.
func parseLine(line string) (level slog.Level, backend, text string) {
	backend, text, ok := strings.Cut(line, "|")
	if !ok {
		return slog.LevelWarn, "", line // from a library or the dynamic linker, not from the logger
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

// tail returns the last lines of a server that failed to start. It waits up to tailWait for them.
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
