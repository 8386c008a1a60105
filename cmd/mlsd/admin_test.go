package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"mlsd/internal/pgtest"
)

// deadlined is a response that records its deadlines.
type deadlined struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (d *deadlined) SetReadDeadline(t time.Time) error  { d.read = t; return nil }
func (d *deadlined) SetWriteDeadline(t time.Time) error { d.write = t; return nil }

// A check and its answer may take longer than the listener's timeouts.
func TestCheckOutlivesTimeouts(t *testing.T) {
	t.Parallel()
	c := newChecker(pgtest.Database(t), slog.New(slog.DiscardHandler))
	for _, path := range []string{"/check", "/check?convo=1f0c9a5e-0000-4000-8000-000000000000"} {
		begun := time.Now()
		w := &deadlined{httptest.NewRecorder(), begun, begun}
		c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != http.StatusOK || w.Body.String() != "[]\n" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if !w.read.IsZero() || !w.write.After(begun) {
			t.Errorf("%s: to be read by %s and written by %s, and it began at %s", path, w.read, w.write, begun)
		}
	}
}

// A check of the whole database waits for the one before it, as long as its client waits. A check
// of one convo does not wait.
func TestOneCheckAtATime(t *testing.T) {
	t.Parallel()
	c := newChecker(pgtest.Database(t), slog.New(slog.DiscardHandler))
	ask := func(ctx context.Context, path string) int {
		w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
		c.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
		return w.Code
	}
	c.running <- struct{}{} // another check runs
	if got := ask(t.Context(), "/check?convo=1f0c9a5e-0000-4000-8000-000000000000"); got != http.StatusOK {
		t.Errorf("a convo: %d", got)
	}
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	if got := ask(gone, "/check"); got != http.StatusInternalServerError {
		t.Errorf("everything, for a client that hung up: %d", got)
	}
	answered := make(chan int)
	go func() { answered <- ask(t.Context(), "/check") }()
	<-c.running // the other check has ended
	if got := <-answered; got != http.StatusOK {
		t.Errorf("everything: %d", got)
	}
	if len(c.running) != 0 {
		t.Error("the checker still counts a check as running")
	}
}
