package node

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"mlsd/internal/pgtest"
	"mlsd/operator/invariants"
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
	db := pgtest.Database(t)
	c := &checker{slog.New(slog.DiscardHandler), invariants.NewChecker(db), time.Now}
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
