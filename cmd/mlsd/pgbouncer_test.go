package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/testbed"
	"mlsd/internal/pgtest"
)

// pgbouncerProgram names the program of PgBouncer. cmd/mlsd/checkpgbouncer.sh sets it.
const pgbouncerProgram = "MLSD_TEST_PGBOUNCER"

// E11: mlsd works behind a PgBouncer that pools sessions, and refuses to start behind one that pools
// transactions or statements.
func TestPgBouncer(t *testing.T) {
	program := os.Getenv(pgbouncerProgram)
	if program == "" {
		t.Skip("SKIPPED: " + pgbouncerProgram + " is not set; cmd/mlsd/checkpgbouncer.sh runs this test with a real PgBouncer")
	}
	t.Run("session", func(t *testing.T) {
		w := newWorld(t)
		s := boot(t, nil, w.flags("--database-url", startPgBouncer(t, program, "session"))...)
		w.use(s.admin, s.public)
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.public+"/xrpc/"+mlsapi.NSIDStreamConvoEvents, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", bob.Authorization(t, serviceDID, mlsapi.NSIDStreamConvoEvents, time.Now()))
		stream, err := http.DefaultClient.Do(r)
		if err != nil || stream.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", stream, err)
		}
		defer func() { _ = stream.Body.Close() }()
		alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "behind a pooler")).must().ok()
		for lines := bufio.NewScanner(stream.Body); lines.Text() != "event: messageEvent"; {
			if !lines.Scan() {
				t.Fatalf("the stream ended: %v", lines.Err())
			}
		}
		w.wantSound()
		s.stop()
	})
	for _, mode := range []string{"transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			through := startPgBouncer(t, program, mode)
			launch(t, nil, "--database-url", through).fails("MLSD_DATABASE_URL", "set pool_mode = session")
		})
	}
}

// startPgBouncer starts a PgBouncer before a new database, and returns the URL of the database through
// it. It ends with the test.
func startPgBouncer(t *testing.T, program, mode string) string {
	t.Helper()
	b, err := testbed.StartPgBouncer(t.Context(), program, mode, pgtest.URL(t), filepath.Dir(dataDir(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of PgBouncer:\n%s", b.Log())
		}
	})
	return b.URL()
}
