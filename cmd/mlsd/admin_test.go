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

// deadlined is an answer that is asked to have deadlines.
type deadlined struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (d *deadlined) SetReadDeadline(t time.Time) error  { d.read = t; return nil }
func (d *deadlined) SetWriteDeadline(t time.Time) error { d.write = t; return nil }

// The listener's timeouts, which are shorter than a check may be, end neither the check nor its answer.
func TestCheckOutlivesTimeouts(t *testing.T) {
	t.Parallel()
	db, whole := pgtest.Database(t), make(chan struct{}, 1)
	for _, path := range []string{"/check", "/check?convo=1f0c9a5e-0000-4000-8000-000000000000"} {
		begun := time.Now()
		w := &deadlined{httptest.NewRecorder(), begun, begun}
		check(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil), db, whole, slog.New(slog.DiscardHandler))
		if w.Code != http.StatusOK || w.Body.String() != "[]\n" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if !w.read.IsZero() || !w.write.After(begun) {
			t.Errorf("%s: to be read by %s and written by %s, and it began at %s", path, w.read, w.write, begun)
		}
	}
}

// A check of everything waits for the one before it, and no longer than its client does; that of a convo waits for nobody.
func TestChecksTakeTurns(t *testing.T) {
	t.Parallel()
	db, whole := pgtest.Database(t), make(chan struct{}, 1)
	ask := func(ctx context.Context, path string) int {
		w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
		check(w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil), db, whole, slog.New(slog.DiscardHandler))
		return w.Code
	}
	whole <- struct{}{} // another is under way
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
	<-whole // the other is done
	if got := <-answered; got != http.StatusOK {
		t.Errorf("everything: %d", got)
	}
	if len(whole) != 0 {
		t.Error("the turn was not given on")
	}
}
