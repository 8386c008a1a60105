package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
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
		t.Skip("SKIPPED: " + pgbouncerProgram +
			" is not set; cmd/mlsd/checkpgbouncer.sh runs this test with a real PgBouncer")
	}
	t.Run("session", func(t *testing.T) { worksBehind(t, startPgBouncer(t, program, "session")) })
	t.Run("the guide's", func(t *testing.T) { worksBehind(t, startGuidePgBouncer(t, program)) })
	for _, mode := range []string{"transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			through := startPgBouncer(t, program, mode)
			launch(t, nil, "--database-url", through).fails("MLSD_DATABASE_URL", "set pool_mode = session")
		})
	}
}

// worksBehind runs mlsd with a database that is reached through a PgBouncer: an event comes by a
// stream, and every promise holds.
func worksBehind(t *testing.T, through string) {
	t.Helper()
	w := newWorld(t)
	s := boot(t, nil, w.flags("--database-url", through)...)
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
}

// startGuidePgBouncer starts a PgBouncer with the configuration of docs/operating/POSTGRESQL.md, at
// other addresses and without passwords.
func startGuidePgBouncer(t *testing.T, program string) string {
	t.Helper()
	guide := blocks(pages(t)["docs/operating/POSTGRESQL.md"])["ini"]
	return running(t, func(dir string) (*testbed.PgBouncer, error) {
		return testbed.StartPgBouncerWith(t.Context(), program, func(sockets, port, user, listen, listenPort string) string {
			changes := []string{
				"mlsd_service = host=10.0.0.5 port=5432", "* = host=" + sockets + " port=" + port + " user=" + user,
				"listen_addr = 10.0.0.6", "listen_addr = " + listen + "\nlisten_port = " + listenPort + "\nunix_socket_dir =",
				"auth_type = scram-sha-256", "auth_type = any", "auth_file = /etc/pgbouncer/userlist.txt", "",
			}
			for i := 0; i < len(changes); i += 2 {
				if !strings.Contains(guide, changes[i]) {
					t.Errorf("the page's configuration has no %q", changes[i])
				}
			}
			return strings.NewReplacer(changes...).Replace(guide)
		}, pgtest.URL(t), dir)
	})
}

// startPgBouncer starts a PgBouncer before a new database, and returns the URL of the database through
// it. It ends with the test.
func startPgBouncer(t *testing.T, program, mode string) string {
	t.Helper()
	return running(t, func(dir string) (*testbed.PgBouncer, error) {
		return testbed.StartPgBouncer(t.Context(), program, mode, pgtest.URL(t), dir)
	})
}

// running returns the URL of a database through a PgBouncer that ends with the test.
func running(t *testing.T, start func(dir string) (*testbed.PgBouncer, error)) string {
	t.Helper()
	b, err := start(filepath.Dir(dataDir(t)))
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
