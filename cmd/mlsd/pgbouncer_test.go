package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"mlsd/api/mlsapi"
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
	database, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	socket, user := database.Query().Get("host"), database.User.Username()
	dir := filepath.Dir(dataDir(t))
	port := freePort(t)
	config := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s
[pgbouncer]
pool_mode = %s
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
max_client_conn = 200
default_pool_size = 100
`, socket, database.Query().Get("port"), user, mode, port)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// The tests' server accepts its own account at its socket, and PgBouncer does not run as root.
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("the owner of the socket is not known")
	}
	log := newOutput()
	cmd := exec.Command(program, config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it ends by a signal
	}()
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		<-ended
		if t.Failed() {
			t.Logf("log of PgBouncer:\n%s", log)
		}
	})
	address := net.JoinHostPort("127.0.0.1", port)
	eventually(t, "PgBouncer listens", func() bool {
		conn, err := net.Dial("tcp", address)
		return err == nil && conn.Close() == nil
	})
	through := url.URL{Scheme: "postgres", User: url.User(user), Host: address, Path: database.Path, RawQuery: "sslmode=disable"}
	return through.String()
}

// freePort returns a port that is free now.
func freePort(t *testing.T) string {
	t.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, ok := listen.Addr().(*net.TCPAddr)
	if err := listen.Close(); err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	return strconv.Itoa(address.Port)
}
