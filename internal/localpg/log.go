package localpg

import (
	"context"
	"log/slog"
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

// serverLog writes the server's log to a slog.Logger.
type serverLog struct {
	log *slog.Logger

	mu      sync.Mutex
	partial string   // a line that has no end yet; protected by mu
	last    []string // protected by mu
}

// Write implements io.Writer.
func (l *serverLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(l.partial+string(p), "\n")
	l.partial = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		level, backend, text := parseLine(line)
		if l.last = append(l.last, text); len(l.last) > tailLines {
			l.last = l.last[1:]
		}
		l.log.Log(context.Background(), level, "postgres: "+text, "process", backend)
	}
	return len(p), nil
}

// tail returns the last lines.
func (l *serverLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(append(l.last, l.partial), "\n")
}

// parseLine returns the level of a line of the server's log, the type of the backend, and the text.
// LOG is routine. An ERROR or FATAL of a client's session gets the level Debug, because the client
// reports it, and the text can contain values. An ERROR or FATAL of a background process gets the
// level Warn.
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
