package localpg

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"mlsd/internal/await"

	"github.com/jackc/pgx/v5"
)

func TestParseLine(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]slog.Level{
		"postmaster|LOG:  database system is ready":               slog.LevelDebug,
		"client backend|ERROR:  duplicate key":                    slog.LevelDebug,
		"autovacuum worker|ERROR:  invalid page in block 7":       slog.LevelWarn,
		"client backend|FATAL:  terminating connection":           slog.LevelDebug,
		"client backend|PANIC:  could not write":                  slog.LevelError,
		"checkpointer|WARNING:  checkpoints are too frequent":     slog.LevelWarn,
		"startup|FATAL:  lock file exists":                        slog.LevelWarn,
		"checkpointer|PANIC:  could not write":                    slog.LevelError,
		"postgres: error while loading shared libraries: libx.so": slog.LevelWarn,
	} {
		if got, _, text := parseLine(line); got != want || !strings.HasSuffix(line, text) {
			t.Errorf("%s: %v %q, want %v", line, got, text, want)
		}
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // protected by mu
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// The log must not contain stored values, not even in the errors of clients.
func TestLogHoldsNoValues(t *testing.T) {
	t.Parallel()
	var out syncBuffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := start(t, Config{DataDir: usedDir(t), Logger: log})
	mustStore(t, s)
	err := query(t.Context(), s, func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), `CREATE TABLE u (x text PRIMARY KEY); INSERT INTO u VALUES ('secret'), ('secret')`)
		return err
	})
	if err == nil {
		t.Fatal("no error to log")
	}
	await.Until(t, "the error is logged", func() bool { return strings.Contains(out.String(), "duplicate key value") })
	stop(t, s)
	if strings.Contains(out.String(), "secret") {
		t.Errorf("the log holds a value:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "private PostgreSQL is up") {
		t.Error("the start is not logged")
	}
}
