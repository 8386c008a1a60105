package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mlsd/internal/testdir"
)

// output collects what a server writes. A test can wait for a text.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{} // closed and replaced at every write
}

func newOutput() *output { return &output{grown: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.grown)
	o.grown = make(chan struct{})
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await waits until the output matches, and returns the groups of the match. It returns nil if the
// writer ends before.
func (o *output) await(t testing.TB, pattern *regexp.Regexp, ended <-chan struct{}) []string {
	t.Helper()
	timeout := time.After(deadline)
	for {
		o.mu.Lock()
		found, grown := pattern.FindStringSubmatch(o.text.String()), o.grown
		o.mu.Unlock()
		if found != nil {
			return found
		}
		select {
		case <-grown:
		case <-ended:
			return pattern.FindStringSubmatch(o.String())
		case <-timeout:
			t.Fatalf("%v did not come in %v; the output is:\n%s", pattern, deadline, o)
		}
	}
}

// readyLines matches the whole stdout of a server.
func readyLines() *regexp.Regexp {
	return regexp.MustCompile(`^mlsd admin on http://(127\.0\.0\.1:\d+)\nmlsd listening on http://(127\.0\.0\.1:\d+)\n$`)
}

// server is mlsd, running in this process.
type server struct {
	t              testing.TB
	admin, public  string // URLs, once it is ready
	stdout, stderr *output
	cancel         context.CancelFunc
	ended          chan struct{}
	err            error // what run returned; read after ended
}

// launch calls run with free ports and args. The server stops at the end of the test.
func launch(t testing.TB, environ []string, args ...string) *server {
	t.Helper()
	return launchAs(t, run, environ, args...)
}

// launchAs is launch for a program other than run.
func launchAs(t testing.TB, run func(context.Context, []string, []string, io.Writer, io.Writer) error,
	environ []string, args ...string) *server {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{t: t, stdout: newOutput(), stderr: newOutput(), cancel: cancel, ended: make(chan struct{})}
	args = append([]string{"mlsd", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "text"},
		args...)
	go func() {
		defer close(s.ended)
		s.err = run(ctx, args, environ, s.stdout, s.stderr)
	}()
	t.Cleanup(func() {
		cancel()
		<-s.ended
		if t.Failed() {
			t.Logf("log of %v:\n%s", args, s.stderr)
		}
	})
	return s
}

// boot launches a server and waits until it is ready.
func boot(t *testing.T, environ []string, args ...string) *server {
	t.Helper()
	s := launch(t, environ, args...)
	s.ready()
	return s
}

func (s *server) ready() {
	s.t.Helper()
	found := s.stdout.await(s.t, readyLines(), s.ended)
	if found == nil {
		<-s.ended
		s.t.Fatalf("run: %v, before it was ready; stdout %q", s.err, s.stdout)
	}
	s.admin, s.public = "http://"+found[1], "http://"+found[2]
}

// wait returns what run returned.
func (s *server) wait() error {
	s.t.Helper()
	select {
	case <-s.ended:
		return s.err
	case <-time.After(deadline):
		s.t.Fatalf("run did not return in %v", deadline)
		return nil
	}
}

// stop shuts the server down.
func (s *server) stop() {
	s.t.Helper()
	s.cancel()
	if err := s.wait(); err != nil {
		s.t.Fatalf("run: %v", err)
	}
}

// fails expects run to end by itself, with an error that has all of these parts.
func (s *server) fails(parts ...string) {
	s.t.Helper()
	err := s.wait()
	if err == nil {
		s.t.Fatal("run returned nil")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			s.t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

// dataDir names a data directory that does not exist. If the test runs as root, PostgreSQL runs as
// another user, which can enter its parent.
func dataDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(testdir.For(t), "data")
}

// postmaster returns the process ID of the PostgreSQL in a data directory, or 0 if it was shut down
// in order.
func postmaster(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, numErr := strconv.Atoi(line)
	if err := errors.Join(err, numErr); err != nil {
		t.Fatal(err)
	}
	return pid
}

// alive reports whether a process runs. A zombie does not.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		_, err = os.Stat("/proc/self/stat")
		return err != nil // without /proc the test cannot find out more
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// fetch gets a page.
func fetch(t *testing.T, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(content)
}

// wantPage expects a page to be exactly this.
func wantPage(t *testing.T, url string, status int, body string) {
	t.Helper()
	if gotStatus, got := fetch(t, url); gotStatus != status || got != body {
		t.Errorf("%s: %d %q, want %d %q", url, gotStatus, got, status, body)
	}
}
