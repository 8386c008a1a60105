package localpg

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlsd/internal/terminal"
)

// O5: a start that waits for initdb shows that on a terminal after a second, and for how long. Here
// initdb waits for the test.
func TestSlowStartIsShown(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	bin := scripts(t, map[string]string{
		"postgres": `exec $REAL/postgres "$@"`,
		"initdb":   `until test -e ` + gate + `; do sleep 0.05; done; exec $REAL/initdb "$@"`,
	})
	if err := os.Chmod(filepath.Dir(gate), 0o755); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	shown := terminal.OnTerminal(&out)
	making, started := make(chan struct{}), make(chan error)
	cfg := Config{DataDir: dataDir(t), Settings: quick(), download: noDownload, installed: []string{bin},
		Step: func(step, detail string) {
			shown.Step(step, detail)
			if strings.HasPrefix(step, "making") {
				close(making)
			}
		}}
	var s *Server
	go func() {
		var err error
		s, err = Start(context.Background(), cfg)
		started <- err
	}()
	<-making
	shown.Tick()
	shown.Tick()
	const want = "making a new PostgreSQL cluster … 1 s\r\x1b[Kmaking a new PostgreSQL cluster … 2 s"
	if out.String() != want {
		t.Errorf("the terminal shows %q, want %q", out.String(), want)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}
