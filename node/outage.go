package node

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/internal/pgpool"
	"mlsd/internal/ratelog"
	"mlsd/internal/worker"
)

const (
	pingTimeout = 3 * time.Second        // of one attempt to reach the database
	pingEvery   = 500 * time.Millisecond // from one attempt to the next
	sayEvery    = time.Minute            // how often a line says that the outage lasts
	maxHeld     = 100                    // records that wait for an attempt
)

// outageLog is a log that does not repeat that the database is unreachable. It writes one line when
// the database cannot be reached, at most one line a minute while the outage lasts, and one line
// when the database is back. Otherwise each request and each round of a worker would write a line.
//
// A record is about the database if its attribute error says that something cannot be reached (by
// pgpool.Unavailable), or that nobody may connect. outageLog holds such a record, and tries to
// reach the database itself. If it can, it writes the record. If it cannot, an outage begins, which
// ends when the database can be reached again. During the outage outageLog counts such records, and
// writes none of them. A record that stands for others (ratelog.LeftOut) counts as that many
// records. It is left out even for some time after the outage.
type outageLog struct {
	*slog.Logger
	next   *slog.Logger
	wake   worker.Trigger
	writes atomic.Pointer[writeWatch] // while writes fail, it counts records about the database

	mu      sync.Mutex // guards what follows
	running bool       // Run is running; otherwise all records are written
	out     bool       // the database cannot be reached
	held    []func()   // functions that write the records that wait
	leftOut int        // how many records of the outage were left out
	ended   time.Time  // when the last outage ended
	asked   time.Time  // when a record that the watch of writes counts has last caused a ping
}

// newOutageLog returns a log that writes to next.
func newOutageLog(next *slog.Logger) *outageLog {
	l := &outageLog{next: next, wake: worker.NewTrigger()}
	l.Logger = slog.New(&outageHandler{next.Handler(), l})
	return l
}

// Run watches the database with ping until ctx ends. It calls ping only after a record about the
// database.
func (l *outageLog) Run(ctx context.Context, ping func(context.Context) error) {
	l.mu.Lock()
	l.running = true
	l.mu.Unlock()
	defer l.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		if err := try(ctx, ping); err != nil && ctx.Err() == nil {
			l.outage(ctx, ping, err)
		} else {
			l.release()
		}
	}
}

// outage writes the lines of an outage, and returns when it is over.
func (l *outageLog) outage(ctx context.Context, ping func(context.Context) error, err error) {
	l.mu.Lock()
	l.out, l.leftOut, l.held = true, l.leftOut+len(l.held), nil
	l.mu.Unlock()
	begun := time.Now()
	said := begun
	l.next.ErrorContext(ctx, "the database cannot be reached", "error", err)
	for err != nil {
		if worker.Pause(ctx, pingEvery); ctx.Err() != nil {
			return
		}
		err = try(ctx, ping)
		if err != nil && time.Since(said) >= sayEvery {
			said = time.Now()
			l.next.ErrorContext(ctx, "the database still cannot be reached",
				"for", time.Since(begun).Round(time.Second), "left_out", l.count(), "error", err)
		}
	}
	took := time.Since(begun)
	worker.Pause(ctx, pingEvery) // time for the records of work that the outage has ended
	l.mu.Lock()
	leftOut := l.leftOut
	l.out, l.leftOut, l.ended = false, 0, time.Now()
	l.mu.Unlock()
	l.next.WarnContext(ctx, "the database is back", "after", took.Round(time.Millisecond), "left_out", leftOut)
}

// tooManyConnections is the SQLSTATE of a database that can be reached, but is busy.
const tooManyConnections = "53300"

// try reaches the database once.
func try(ctx context.Context, ping func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	err := ping(ctx)
	if pgpool.Code(err) == tooManyConnections {
		return nil
	}
	return err
}

func (l *outageLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leftOut
}

// release writes the records that wait.
func (l *outageLog) release() {
	l.mu.Lock()
	held := l.held
	l.held = nil
	l.mu.Unlock()
	for _, write := range held {
		write()
	}
}

func (l *outageLog) stop() {
	l.mu.Lock()
	l.running, l.out = false, false
	l.mu.Unlock()
	l.release()
}

// takes reports whether outageLog keeps a record about the database. write writes the record. If
// others is not 0, the record stands for so many other records.
func (l *outageLog) takes(others int, write func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.out:
		l.leftOut += max(1, others)
		return true
	case others > 0 && time.Since(l.ended) <= ratelog.Every: // the others are from the outage
		return true
	case !l.running, len(l.held) >= maxHeld:
		return false
	}
	l.held = append(l.held, write)
	l.wake.Send()
	return true
}

// ask makes Run ping the database after a record that the watch of writes counts: PostgreSQL can go
// down while writes fail for another reason. Such records can come for hours, so ask limits the
// pings.
func (l *outageLog) ask() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.asked) >= pingEvery {
		l.asked = now
		l.wake.Send()
	}
}

// errorOf returns the attribute error of a record.
func errorOf(r slog.Record) (found error) {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && a.Key == "error" {
			found = err
		}
		return found == nil
	})
	return found
}

// aboutDatabase reports whether a record is about a database that cannot be reached, and how many
// other records it stands for.
func aboutDatabase(r slog.Record) (found bool, others int) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == ratelog.LeftOut {
			others = int(a.Value.Int64())
		}
		return true
	})
	return pgpool.Unavailable(errorOf(r)), others
}

// outageHandler is a slog.Handler that asks an outageLog about each record.
type outageHandler struct {
	next slog.Handler
	log  *outageLog
}

// Enabled implements slog.Handler.
func (h *outageHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *outageHandler) Handle(ctx context.Context, r slog.Record) error {
	if found, others := aboutDatabase(r); found {
		kept := r.Clone()
		if w := h.log.writes.Load(); w != nil && w.takes(errorOf(r), others) {
			h.log.ask()
			return nil
		}
		write := func() { _ = h.next.Handle(context.WithoutCancel(ctx), kept) } // an error of the log has nowhere to go
		if h.log.takes(others, write) {
			return nil
		}
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *outageHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &outageHandler{h.next.WithAttrs(attrs), h.log}
}

// WithGroup implements slog.Handler.
func (h *outageHandler) WithGroup(name string) slog.Handler {
	return &outageHandler{h.next.WithGroup(name), h.log}
}
