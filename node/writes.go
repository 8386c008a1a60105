package node

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/mlsapi"
	"mlsd/features/requests"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

const (
	writesInterval = 10 * time.Second
	writesTimeout  = 3 * time.Second
	// heldLong is how long a transaction may hold locks before a line names it.
	heldLong = 10 * time.Second
	// quietRounds is after how many rounds without a write nobody knows any more whether writes fail.
	quietRounds = 6
)

// writeWatch notices when writes do not succeed, and says why: somebody's locks, a full disk, or a
// primary that takes no writes. It looks at the answers of real writes, because nothing else shows
// all that can stop them.
type writeWatch struct {
	db         *pgxpool.Pool
	log        *slog.Logger
	now        func() time.Time
	procedures map[string]bool
	heldLong   time.Duration

	mu        sync.Mutex // guards what follows
	succeeded int        // writes since the last round
	failed    int        // writes since the last round that failed by our fault, or got no lock in time
	last      error      // of the database, since a write has succeeded last; one that says why counts more
	rounds    int        // rounds in a row with failed writes and no other
	quiet     int        // rounds in a row without a write
	since     time.Time  // when the first of these rounds ended
	leftOut   int        // records about the database that were left out since the last line
	cause     string     // why writes fail, at the last round; "" if they do not

	said time.Time // when a line said last that writes fail; owned by RunOnce
}

func newWriteWatch(db *pgxpool.Pool, log *slog.Logger, now func() time.Time) *writeWatch {
	w := &writeWatch{db: db, log: log, now: now, procedures: map[string]bool{}, heldLong: heldLong}
	for _, m := range mlsapi.Methods() {
		w.procedures[m.NSID] = m.Kind == mlsapi.Procedure
	}
	return w
}

// Answered counts the answer to a request.
func (w *writeWatch) Answered(q requests.Request) {
	if !w.procedures[q.NSID] || q.Replayed {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case q.Status < http.StatusMultipleChoices:
		w.succeeded++
	case q.Status >= http.StatusInternalServerError, q.Error == mlsapi.ErrRequestInProgress:
		w.failed++
	}
}

// takes reports whether writes fail, so that a record about the database need not be written: the
// lines of the watch count it. err is the record's.
func (w *writeWatch) takes(err error, others int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if reason(err) != "" || reason(w.last) == "" {
		w.last = err
	}
	if w.cause == "" {
		return false
	}
	w.leftOut += max(1, others)
	return true
}

// fault says why writes do not succeed, or "".
func (w *writeWatch) fault() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause
}

// failing returns 1 if writes do not succeed, else 0.
func (w *writeWatch) failing() float64 {
	if w.fault() != "" {
		return 1
	}
	return 0
}

// RunOnce judges the writes since the last round, and logs what has changed. Writes do not succeed
// if, in two rounds in a row, some have failed and none has succeeded. Rounds without a write change
// nothing, but after quietRounds of them the fault ends.
func (w *writeWatch) RunOnce(ctx context.Context) error {
	w.mu.Lock()
	succeeded, failed, last := w.succeeded, w.failed, w.last
	w.succeeded, w.failed = 0, 0
	w.quiet++
	if succeeded+failed > 0 {
		w.quiet = 0
	}
	says := "writes succeed again"
	switch {
	case w.quiet >= quietRounds:
		says = "writes have failed, and nobody writes any more"
		w.rounds, w.last = 0, nil
	case succeeded > 0:
		w.rounds, w.last = 0, nil
	case failed > 0:
		if w.rounds++; w.rounds == 1 {
			w.since = w.now()
		}
	}
	failing, since := w.rounds >= 2, w.since
	w.mu.Unlock()
	if !failing {
		w.end(ctx, says, since)
		if failed == 0 {
			return nil
		}
	}
	waits, err := w.waitsFor(ctx)
	if !failing {
		if err != nil {
			return err
		}
		if waits != "" {
			w.log.WarnContext(ctx, "some writes wait", "failed", failed, "cause", waits)
		}
		return nil
	}
	cause := causeOf(cmp.Or(last, err), waits)
	w.mu.Lock()
	w.cause = cause
	leftOut := w.leftOut
	w.mu.Unlock()
	if w.said.IsZero() || w.now().Sub(w.said) >= sayEvery {
		w.said = w.now()
		w.log.ErrorContext(ctx, "writes do not succeed", "for", w.now().Sub(since).Round(time.Second), "failed", failed,
			"cause", cause, "left_out", leftOut)
	}
	return nil
}

// end ends the fault, if there is one. says is the line about it.
func (w *writeWatch) end(ctx context.Context, says string, since time.Time) {
	w.mu.Lock()
	cause, leftOut := w.cause, w.leftOut
	w.cause, w.leftOut = "", 0
	w.mu.Unlock()
	if cause != "" {
		w.said = time.Time{}
		w.log.WarnContext(ctx, says, "after", w.now().Sub(since).Round(time.Second), "left_out", leftOut)
	}
}

// causeOf says why writes fail, from the last error of the database and from what they wait for.
func causeOf(last error, waits string) string {
	switch why := reason(last); {
	case why != "":
		return why
	case waits != "":
		return waits
	case last != nil:
		return last.Error()
	}
	return "no other transaction holds locks for long; see mlsd_requests_total by error"
}

// reason is what an error of the database itself says about why writes fail, or "".
func reason(err error) string {
	var from *pgconn.PgError
	switch {
	case !errors.As(err, &from):
		return ""
	case from.Code == "53100", strings.Contains(from.Message, "could not write init file"): // of a new connection
		return "the database's disk is full: free space on it"
	case from.Code == "25006":
		return "the database is read-only: it is a standby, or default_transaction_read_only is on"
	}
	return ""
}

// lockHoldersSQL names transactions that hold locks on our tables for long.
//
//go:embed lockholders.sql
var lockHoldersSQL string

// waitsFor says what writes can wait for: a standby, or transactions of whatever program that have
// held locks for heldLong. It returns "" if there is nothing.
func (w *writeWatch) waitsFor(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, writesTimeout)
	defer cancel()
	if standby, err := standbyAwaited(ctx, w.db); err != nil || standby != "" {
		return standby, errs.Wrap(err, "look for COMMITs that wait")
	}
	type holder struct {
		PID         int32
		Application string
		State       string
		Since       *time.Time
		QuerySince  *time.Time
		Tables      string
	}
	found, err := pgpool.Collect(ctx, w.db, pgx.RowToStructByPos[holder], lockHoldersSQL, w.heldLong)
	if err != nil {
		return "", fmt.Errorf("look for holders of locks: %w", err)
	}
	texts := make([]string, len(found))
	for i, h := range found {
		text := fmt.Sprintf("pid %d (%s, %s) on %s", h.PID, h.Application, h.State, h.Tables)
		if h.PID == 0 {
			text = fmt.Sprintf("the prepared transaction %s on %s", h.Application, h.Tables)
		}
		if h.Since != nil {
			text += " since " + h.Since.UTC().Format(time.RFC3339)
		}
		if h.QuerySince != nil {
			text += ", its query since " + h.QuerySince.UTC().Format(time.RFC3339)
		}
		texts[i] = text
	}
	if len(texts) == 0 {
		return "", nil
	}
	return "locks are held by " + strings.Join(texts, "; "), nil
}
