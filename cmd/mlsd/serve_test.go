package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

// mlsd starts and ends on one data directory in every way. Each time its private PostgreSQL ends
// too.
func TestOwnPostgreSQL(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	for _, step := range []struct {
		name string
		test func(t *testing.T, dir string)
	}{
		{"cold start, then all pages", coldStart},
		{"warm start; a second server is refused, and a command is not", secondProcess},
		{"the address is in use", addressInUse},
		{"PostgreSQL dies", postgreSQLDies},
		{"start after that", func(t *testing.T, dir string) { boot(t, nil, "--data-dir", dir).stop() }},
		{"migrate", migrateOwn},
		{"inspect while it runs, and not after", inspectOwn},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			step.test(t, dir)
			if pid := postmaster(t, dir); pid != 0 && alive(pid) {
				t.Error("PostgreSQL is still there")
			}
		})
		if !ok {
			return
		}
	}
}

func coldStart(t *testing.T, dir string) {
	s := boot(t, nil, "--data-dir", dir)
	pid := postmaster(t, dir)
	status, health := fetch(t, s.public+"/xrpc/_health")
	if version := read[struct{ Version string }](t, []byte(health)).Version; status != http.StatusOK || version == "" {
		t.Errorf("_health: %d %s", status, health)
	}
	wantDIDDocument(t, s)
	wantPage(t, s.admin+"/livez", http.StatusOK, "ok\n")
	wantPage(t, s.admin+"/readyz", http.StatusOK, "ok\n")
	wantPage(t, s.admin+"/check", http.StatusOK, "[]\n")
	wantPage(t, s.admin+"/check?convo=none", http.StatusBadRequest, "convo must be a UUID\n")
	wantPage(t, s.admin+"/check/clients", http.StatusOK, "[]\n")
	wantPage(t, s.admin+"/check/clients?convo=1f0c9a5e-0000-4000-8000-000000000000", http.StatusOK, "[]\n")
	wantPage(t, s.admin+"/check/clients?convo=none", http.StatusBadRequest, "convo must be a UUID\n")
	for _, metric := range []string{"go_goroutines", "process_open_fds",
		`mlsd_requests_total{error="",nsid="other",status="200"}`} {
		if _, metrics := fetch(t, s.admin+"/metrics"); !strings.Contains(metrics, metric) {
			t.Errorf("no %s in /metrics", metric)
		}
	}
	for _, page := range []string{"/metrics", "/livez", "/readyz", "/check", "/check/clients", "/debug/pprof/"} {
		if status, _ := fetch(t, s.public+page); status != http.StatusNotFound {
			t.Errorf("%s on the public listener: %d", page, status)
		}
	}
	if resp, err := http.Post(s.admin+"/failpoints?point=after-commit&method=x&action=kill", "", nil); err != nil {
		t.Error(err)
	} else if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("failpoints without --failpoints: %s, %v", resp.Status, err)
	}
	s.stop()
	if alive(pid) || postmaster(t, dir) != 0 {
		t.Error("PostgreSQL was not shut down in order")
	}
}

// wantDIDDocument expects the default service DID to name the port of the listener.
func wantDIDDocument(t *testing.T, s *server) {
	t.Helper()
	u, err := url.Parse(s.public)
	if err != nil {
		t.Fatal(err)
	}
	status, body := fetch(t, s.public+"/.well-known/did.json")
	var doc struct {
		ID      string
		Service []struct{ ID, ServiceEndpoint string }
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil || status != http.StatusOK || len(doc.Service) != 1 {
		t.Fatalf("did.json: %d %s", status, body)
	}
	if doc.ID != "did:web:localhost%3A"+u.Port() || doc.Service[0].ID != "#atproto_mls" ||
		doc.Service[0].ServiceEndpoint != "http://localhost:"+u.Port() {
		t.Errorf("did.json: %s", body)
	}
}

func secondProcess(t *testing.T, dir string) {
	s := boot(t, nil, "--data-dir", dir)
	pid := postmaster(t, dir)
	launch(t, nil, "--data-dir", dir).fails(dir+" is in use by process", "use another directory")
	for _, command := range []string{"migrate version", "check-config --database"} {
		asks := launch(t, nil, append([]string{"--data-dir", dir}, strings.Fields(command)...)...)
		if err := asks.wait(); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	if postmaster(t, dir) != pid || !alive(pid) {
		t.Error("the second process disturbed the first one's PostgreSQL")
	}
	wantPage(t, s.admin+"/readyz", http.StatusOK, "ok\n")
	s.stop()
}

func addressInUse(t *testing.T, dir string) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := taken.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, flag := range []string{"--listen", "--admin-listen"} {
		launch(t, nil, "--data-dir", dir, flag, taken.Addr().String()).fails("another program listens there",
			taken.Addr().String())
		if postmaster(t, dir) != 0 {
			t.Errorf("%s: PostgreSQL was not shut down", flag)
		}
	}
}

func postgreSQLDies(t *testing.T, dir string) {
	s := boot(t, nil, "--data-dir", dir)
	if err := syscall.Kill(postmaster(t, dir), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.fails("the private PostgreSQL has ended", "killed")
}

func migrateOwn(t *testing.T, dir string) {
	checked := launch(t, nil, "--data-dir", dir, "check-config", "--database")
	if err := checked.wait(); err != nil {
		t.Errorf("check-config: %v", err)
	}
	s := launch(t, nil, "--data-dir", dir, "migrate", "version")
	if err := s.wait(); err != nil || s.stdout.String() != strconv.Itoa(newestMigration(t))+"\n" {
		t.Errorf("migrate version: %q, %v", s.stdout, err)
	}
	if postmaster(t, dir) != 0 {
		t.Error("PostgreSQL was not shut down")
	}
}

func inspectOwn(t *testing.T, dir string) {
	s := boot(t, nil, "--data-dir", dir)
	looking := launch(t, nil, "--data-dir", dir, "inspect")
	if err := looking.wait(); err != nil || !strings.Contains(looking.stdout.String(), "== welcomes") {
		t.Errorf("inspect: %q, %v", looking.stdout, err)
	}
	wantPage(t, s.admin+"/readyz", http.StatusOK, "ok\n")
	s.stop()
	launch(t, nil, "--data-dir", dir, "inspect").fails(dir, "no mlsd is running", "MLSD_DATABASE_URL")
}

// If mlsd is stopped while it makes its database, it shuts down, and makes the database at the next
// start.
func TestInterruptedStart(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := start(t, dir, []string{slowInitdb(t)})
	await.Until(t, "the cluster is being made", func() bool {
		found, err := filepath.Glob(filepath.Join(dir, "postgres.init-*", "begun"))
		return err == nil && len(found) == 1
	})
	c.signal(syscall.SIGTERM)
	if status := c.wait(); !status.Exited() || status.ExitStatus() != 0 {
		t.Errorf("ended with %v", c.cmd.ProcessState)
	}
	if out := c.stdout.String(); out != "" {
		t.Errorf("it was ready before it could be interrupted: %q", out)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "postgres*", "*")); err != nil || len(left) > 0 {
		t.Errorf("half a cluster is left: %q, %v", left, err)
	}
	boot(t, nil, "--data-dir", dir).stop()
}

// slowInitdb returns a PATH on which initdb begins, and ends when it is interrupted.
func slowInitdb(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // initdb possibly has another account
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"postgres": `echo 'postgres (PostgreSQL) 15.1'`,
		"initdb":   `trap 'rm "$2/begun"; exit 1' INT; echo >"$2/begun"; while :; do sleep 0.05; done`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return "PATH=" + dir + string(os.PathListSeparator) + os.Getenv("PATH")
}

// A server that shuts down is not ready from then on, accepts no connections, and finishes its
// requests.
func TestShutdownFinishesRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := boot(t, nil, w.flags("--database-url", pgtest.URL(t))...)
	w.use(s.admin, s.public)
	u := w.user()
	slow := u.startSlow()
	s.cancel()
	await.Until(t, "the server is not ready any more", func() bool {
		status, _ := fetch(t, s.admin+"/readyz")
		return status == http.StatusServiceUnavailable
	})
	wantPage(t, s.admin+"/livez", http.StatusOK, "ok\n")
	await.Until(t, "new connections are refused", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.public, "http://"))
		return err != nil || conn.Close() != nil
	})
	select {
	case <-s.ended:
		t.Fatalf("run returned %v and left a request behind", s.err)
	default:
	}
	slow.finish().ok()
	if err := s.wait(); err != nil {
		t.Errorf("run: %v", err)
	}
}

// Two unknown settings are one error with both names and no value.
func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	s := launch(t, []string{"PATH=/bin", "MLSD_LISTN=secret", "MLSD_AMDIN=x", "MLSD_TEST_ANYTHING=y"}, "--data-dir",
		dataDir(t))
	s.fails("unknown environment variables: MLSD_AMDIN, MLSD_LISTN")
	if strings.Contains(s.err.Error(), "secret") {
		t.Errorf("the value is in the message: %v", s.err)
	}
}

func TestUnknownArguments(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"frobnicate", "serve extra", "migrate sideways", "migrate up extra", "migrate version extra", "migrate down 1 extra",
		"inspect nonsense", "inspect welcomes extra", "inspect audit 1 extra", "--frob",
	} {
		s := launch(t, nil, append([]string{"--data-dir", dataDir(t)}, strings.Fields(args)...)...)
		words := strings.Fields(args)
		s.fails(strings.TrimLeft(words[len(words)-1], "-"))
	}
}
