package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"mlsd/internal/serviceauth"
)

// plcRemembered is how long after the last failed look-up the PLC directory counts as failing. If
// nobody looks anything up, nobody knows how it is.
const plcRemembered = 5 * time.Minute

// plcWatch notices when look-ups at the PLC directory fail. Each failure concerns one caller, who
// gets 503, so that without the watch only a metric would show it.
type plcWatch struct {
	url string
	log *slog.Logger
	now func() time.Time

	mu    sync.Mutex // guards what follows
	since time.Time  // the first failure after the last answer; zero if the directory has answered since
	last  time.Time  // the last failure
	cause string     // of the last failure; it names no account
	count int        // failures since the last line
	said  time.Time  // when a line was written last
}

func newPLCWatch(url string, log *slog.Logger, now func() time.Time) *plcWatch {
	return &plcWatch{url: url, log: log, now: now}
}

// LookedUp counts a look-up. It logs the first failure at once, later ones once a minute, and the
// first answer after failures.
func (w *plcWatch) LookedUp(l serviceauth.Lookup) {
	if l.Source != serviceauth.LookupPLC || l.Outcome == serviceauth.LookupBusy {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if l.Outcome != serviceauth.LookupFailed {
		if !w.since.IsZero() {
			w.log.Warn("the PLC directory answers again", "directory", w.url, "after", now.Sub(w.since).Round(time.Second),
				"left_out", w.count)
			w.since, w.said, w.count = time.Time{}, time.Time{}, 0
		}
		return
	}
	if w.since.IsZero() {
		w.since = now
	}
	w.last, w.cause = now, causeWithoutURL(l.Err)
	w.count++
	if w.said.IsZero() || now.Sub(w.said) >= sayEvery {
		w.log.Error("look-ups at the PLC directory fail", "directory", w.url, "failed", w.count, "for",
			now.Sub(w.since).Round(time.Second), "cause", w.cause)
		w.said, w.count = now, 0
	}
}

// causeWithoutURL returns the text of an error without the URL of the look-up, which names an
// account.
func causeWithoutURL(err error) string {
	if of := new(url.Error); errors.As(err, &of) {
		return of.Err.Error()
	}
	return err.Error()
}

// fault says that look-ups fail, since when and why, or "".
func (w *plcWatch) fault() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() || w.now().Sub(w.last) > plcRemembered {
		return ""
	}
	return fmt.Sprintf("look-ups at the PLC directory %s fail since %s: %s", w.url, w.since.UTC().Format(time.RFC3339),
		w.cause)
}
