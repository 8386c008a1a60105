package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/internal/ratelog"
)

// lines is a log in memory. Run writes to it as well.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

func newLines() (*lines, *slog.Logger) {
	l := &lines{}
	return l, slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// fakeDatabase is a database that can go away.
type fakeDatabase struct{ away atomic.Pointer[error] }

func (d *fakeDatabase) ping(context.Context) error {
	if err := d.away.Load(); err != nil {
		return *err
	}
	return nil
}

// watched runs a test with a database that a log watches, in a bubble of time.
func watched(t *testing.T, run func(t *testing.T, out *lines, log *outageLog, db *fakeDatabase)) {
	synctest.Test(t, func(t *testing.T) {
		out, next := newLines()
		log, db := newOutageLog(next), &fakeDatabase{}
		ctx, stop := context.WithCancel(t.Context())
		go log.Run(ctx, db.ping)
		synctest.Wait()
		run(t, out, log, db)
		stop()
		synctest.Wait()
	})
}

// O4: an outage of five and a half minutes, in which eight records a second say that something
// failed, is one line when it begins, one each minute, and one when it is over.
func TestOutage(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, out *lines, log *outageLog, db *fakeDatabase) {
		gone := error(io.ErrUnexpectedEOF)
		db.away.Store(&gone)
		log.Error("it failed", "error", gone)
		time.Sleep(10 * time.Millisecond) // so that nothing happens at the same moment
		for range 330 * 8 {
			log.With("worker", 1).Error("it failed", "error", fmt.Errorf("write: %w", gone))
			time.Sleep(time.Second / 8)
		}
		log.Info("another matter")
		db.away.Store(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		want := `level=ERROR msg="the database cannot be reached" error="unexpected EOF"
level=ERROR msg="the database still cannot be reached" for=1m0s left_out=481 error="unexpected EOF"
level=ERROR msg="the database still cannot be reached" for=2m0s left_out=961 error="unexpected EOF"
level=ERROR msg="the database still cannot be reached" for=3m0s left_out=1441 error="unexpected EOF"
level=ERROR msg="the database still cannot be reached" for=4m0s left_out=1921 error="unexpected EOF"
level=ERROR msg="the database still cannot be reached" for=5m0s left_out=2401 error="unexpected EOF"
level=INFO msg="another matter"
level=WARN msg="the database is back" after=5m30.5s left_out=2641
`
		if got := out.String(); got != want {
			t.Errorf("the log is\n%s, want\n%s", got, want)
		}
		out.Reset()
		db.away.Store(&gone)
		log.Error("it failed", "error", gone)
		time.Sleep(pingEvery)
		synctest.Wait()
		if !strings.HasPrefix(out.String(), `level=ERROR msg="the database cannot be reached"`) {
			t.Errorf("the next outage is %q", out)
		}
	})
}

// A log that leaves out what comes too often, as those of unauthenticated callers' requests do,
// adds no line to an outage. The lines that it has left out are counted.
func TestOutageOfLimitedLines(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, out *lines, log *outageLog, db *fakeDatabase) {
		limited := ratelog.New(log.Logger)
		gone := error(io.ErrUnexpectedEOF)
		db.away.Store(&gone)
		time.Sleep(10 * time.Millisecond) // so that nothing happens at the same moment
		const failed = 270
		for range failed {
			limited.Warn("it failed", "error", fmt.Errorf("write: %w", gone))
			time.Sleep(130 * time.Millisecond)
		}
		db.away.Store(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := out.String(); strings.Count(got, "\n") != 2 || !strings.HasPrefix(got,
			`level=ERROR msg="the database cannot be reached"`) || !strings.Contains(got, "left_out=241\n") {
			t.Errorf("%d failures in 35 seconds leave\n%s", failed, got)
		}
		limited.Warn("it failed", "error", "of another kind")
		if !strings.Contains(out.String(), "of another kind") {
			t.Errorf("after the outage the log is\n%s", out)
		}
	})
}

// A record about something else that cannot be reached, or about a database that is busy, is
// written as it is. So is every record while nothing watches the database.
func TestNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out, next := newLines()
		log, db := newOutageLog(next), &fakeDatabase{}
		say := func() string {
			out.Reset()
			log.Error("a webhook failed", "error", io.EOF, "job", 7)
			synctest.Wait()
			return out.String()
		}
		const want = "level=ERROR msg=\"a webhook failed\" error=EOF job=7\n"
		if got := say(); got != want {
			t.Errorf("before Run: %q", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		go log.Run(ctx, db.ping)
		synctest.Wait()
		if got := say(); got != want {
			t.Errorf("the database is there: %q", got)
		}
		busy := error(&pgconn.PgError{Code: tooManyConnections})
		db.away.Store(&busy)
		if got := say(); got != want {
			t.Errorf("the database is busy: %q", got)
		}
		stop()
		synctest.Wait()
		if got := say(); got != want {
			t.Errorf("after Run: %q", got)
		}
	})
}

// PostgreSQL goes down while writes fail for another reason. Their watch counts the records, and
// the outage is still seen.
func TestOutageWhileWritesFail(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, out *lines, log *outageLog, db *fakeDatabase) {
		w := newWriteWatch(nil, log.Logger, time.Now)
		w.cause = "the database's disk is full"
		log.writes.Store(w)
		log.Error("it failed", "error", io.EOF)
		synctest.Wait()
		if got := out.String(); got != "" {
			t.Errorf("PostgreSQL is there, and the log is %s", got)
		}
		gone := error(io.ErrUnexpectedEOF)
		db.away.Store(&gone)
		time.Sleep(pingEvery)
		log.Error("it failed", "error", gone)
		synctest.Wait()
		const want = "level=ERROR msg=\"the database cannot be reached\" error=\"unexpected EOF\"\n"
		if got := out.String(); got != want {
			t.Errorf("the log is %q, want %q", got, want)
		}
	})
}

// While the database is asked, so many records wait and the others are written. None is lost.
func TestHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out, next := newLines()
		log := newOutageLog(next)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go log.Run(ctx, func(ctx context.Context) error {
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		synctest.Wait()
		for range maxHeld + 7 {
			log.Error("it failed", "error", io.EOF)
		}
		synctest.Wait()
		if n := strings.Count(out.String(), "\n"); n != 7 {
			t.Errorf("%d lines were written at once, want 7", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(out.String(), "\n"); n != maxHeld+7 {
			t.Errorf("%d lines were written, want %d", n, maxHeld+7)
		}
	})
}
