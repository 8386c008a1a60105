package localpg

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Another process finds the server of a data directory while the server runs.
func TestRunning(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	if _, err := Running(dir, "postgres"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("before: %v", err)
	}
	s := start(t, Config{DataDir: dir})
	url, err := Running(dir, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	stop(t, s)
	if _, err := Running(dir, "postgres"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after: %v", err)
	}
}
