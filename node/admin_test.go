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
	c := &checker{db, slog.New(slog.DiscardHandler), invariants.NewChecker(db), time.Now}
	for path, body := range map[string]string{
		"/check": "[]", "/check?convo=1f0c9a5e-0000-4000-8000-000000000000": "[]", "/check?sample=100": "[]",
		"/check?since=2026-11-22T10:15:00Z": "[]", "/check?since=2h": "[]",
		"/check?cursor=": `{"violations":[],"checked":"0 convos, 0 entries, 0 people, 0 rows of events","cursor":""}`,
		"/check?cursor=" + invariants.From(time.Unix(1, 0)).String() + "&since=1970-01-01T00:00:01Z": `{"violations":[],` +
			`"checked":"0 convos, 0 entries, 0 people, 0 rows of events","cursor":""}`,
	} {
		begun := time.Now()
		w := &deadlined{httptest.NewRecorder(), begun, begun}
		c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.Code != http.StatusOK || w.Body.String() != body+"\n" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if !w.read.IsZero() || !w.write.After(begun) {
			t.Errorf("%s: to be read by %s and written by %s, and it began at %s", path, w.read, w.write, begun)
		}
	}
}

// A query that no check can be made for is refused by name.
func TestWrongChecks(t *testing.T) {
	t.Parallel()
	c := &checker{nil, slog.New(slog.DiscardHandler), nil, time.Now}
	for query, want := range map[string]string{
		"convo=": "convo must be a UUID", "convo=none": "convo must be a UUID",
		"sample=0": "sample must be a number from 1 to 10000", "sample=10001": "sample must be a number from 1 to 10000",
		"since=yesterday":                     "since must be a time such as 2026-11-22T10:15:00Z, or an age such as 2h",
		"sample=1&since=2026-11-22T10:15:00Z": "only one of convo, sample and since can be given",
		"cursor=x":                            "cursor must be the cursor of an answer", "all=1": "unknown parameter all",
		"cursor=" + invariants.From(time.Unix(1, 0)).String() +
			"&since=2026-11-22T10:15:00Z": "cursor is of a check with another since",
	} {
		w := &deadlined{ResponseRecorder: httptest.NewRecorder()}
		c.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/check?"+query, nil))
		if w.Code != http.StatusBadRequest || w.Body.String() != want+"\n" {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
}
