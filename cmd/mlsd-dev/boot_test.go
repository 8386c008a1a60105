package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"
)

// deadline bounds every wait in these tests. A wait is usually much shorter.
const deadline = 60 * time.Second

// output collects what a server writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// readiness is the output of a server: its first text says that the server is ready.
type readiness chan string

// Write implements io.Writer.
func (r readiness) Write(text []byte) (int, error) {
	r <- string(text)
	return len(text), nil
}

// server is mlsd-dev, running in this process.
type server struct {
	t      testing.TB
	log    output
	cancel context.CancelFunc
	ended  chan error // what run returned
}

// bootDev starts mlsd-dev. It ends with the test.
func bootDev(t testing.TB) (devClient, *server) {
	t.Helper()
	text, s := boot(t)
	found := regexp.MustCompile(`^mlsd-dev on (http://127\.0\.0\.1:\d+)\n$`).FindStringSubmatch(<-text)
	if found == nil {
		t.Fatal("it prints something else")
	}
	return devClient{t, found[1]}, s
}

// boot starts mlsd-dev, and returns what it prints: the first text is there.
func boot(t testing.TB, args ...string) (readiness, *server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{t: t, cancel: cancel, ended: make(chan error, 1)}
	printed := make(readiness, 100)
	args = append([]string{"mlsd-dev", "--listen", "127.0.0.1:0", "--log-format", "text"}, args...)
	go func() {
		s.ended <- run(ctx, args, nil, printed, &s.log)
		close(s.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-s.ended
		if t.Failed() {
			t.Logf("log of mlsd-dev:\n%s", &s.log)
		}
	})
	select {
	case text := <-printed:
		printed <- text
	case err := <-s.ended:
		t.Fatalf("run: %v, before it was ready", err)
	case <-time.After(deadline):
		t.Fatalf("it is not ready after %v", deadline)
	}
	return printed, s
}

// stop shuts the server down.
func (s *server) stop() {
	s.t.Helper()
	s.cancel()
	select {
	case err := <-s.ended:
		if err != nil {
			s.t.Fatalf("run: %v", err)
		}
	case <-time.After(deadline):
		s.t.Fatalf("run did not return in %v", deadline)
	}
}

// answer is the server's answer.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

// ok fails the test unless the answer is 200, and returns its body.
func (a answer) ok() []byte {
	a.t.Helper()
	if a.status != http.StatusOK {
		a.t.Fatalf("status %d: %s", a.status, a.body)
	}
	return a.body
}

// fails fails the test unless the answer is this error.
func (a answer) fails(status int, name string) {
	a.t.Helper()
	if e := read[struct{ Error string }](a.t, a.body); a.status != status || e.Error != name {
		a.t.Fatalf("status %d, body %s; want %d %s", a.status, a.body, status, name)
	}
}

// replayed reports whether the answer is marked as a replay.
func (a answer) replayed() bool { return a.header.Get("X-Idempotency-Replay") == "true" }

// read decodes an answer.
func read[T any](t testing.TB, body []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("decode %s: %v", body, err)
	}
	return v
}

// page reads a document by its path from the module's root.
func page(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
