package idem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/pgtest"
)

// events collects the log lines of a store.
type events struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (e *events) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.Write(p)
}

// event is a line of the log. Operators search for these names.
type event struct {
	Level, Msg, Operation, Key, Outcome string
	Fence                               int64
}

func (e *events) all(t *testing.T) (all []event) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for line := range strings.Lines(e.text.String()) {
		var one event
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return all
}

// Finding A26: the log has every step of a reservation, under the names that operators search for.
func TestEvents(t *testing.T) {
	t.Parallel()
	log, beats, counted := &events{}, make(chan time.Time), &counts{}
	b := &bench{db: pgtest.Database(t), faults: failpoint.New()}
	b.Store = idem.New(b.db, counted, slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		b.faults,
		idem.WithBeats(func(time.Duration) (<-chan time.Time, func()) { return beats, func() {} }))
	nothing := func(context.Context, int64) (idem.Done, error) {
		return idem.Done{Outcome: idem.Partial, Response: []byte("some")}, nil
	}
	refused := errors.New("refused")

	begun, goOn := make(chan struct{}), make(chan struct{})
	first := b.start(t.Context(), "k", func(context.Context, int64) (idem.Done, error) {
		close(begun)
		<-goOn
		return idem.Done{}, refused
	})
	<-begun
	if _, err := b.Run(t.Context(), outside("k"), nothing); !errors.Is(err, idem.ErrInProgress) {
		t.Fatalf("the duplicate: %v", err)
	}
	beats <- time.Time{}
	beats <- time.Time{} // received only after the first heartbeat has been written
	beaten := func(e event) bool { return e.Msg == "heartbeat_extended" }
	if !slices.ContainsFunc(log.all(t), beaten) {
		t.Error("no heartbeat")
	}
	close(goOn)
	if out := <-first; !errors.Is(out.err, refused) {
		t.Fatalf("the first attempt: %v", out.err)
	}

	failpointtest.Arm(t, b.faults, failpoint.AfterReserve, idem.NSIDPush, failpoint.Error)
	if _, err := b.Run(t.Context(), outside("k"), nothing); err == nil {
		t.Fatal("the failpoint did not stop the work")
	}
	b.lapse(t)
	if _, err := b.Run(t.Context(), outside("k"), nothing); err != nil {
		t.Fatal(err)
	}

	of := func(level, msg, outcome string, fence int64) event {
		return event{Level: level, Msg: msg, Operation: idem.NSIDPush, Key: "k", Outcome: outcome, Fence: fence}
	}
	want := []event{
		of("INFO", "lock_acquired", "", 1),
		of("INFO", "lock_skipped_duplicate", "", 0),
		of("INFO", "lock_released", "none", 1),
		of("INFO", "lock_acquired", "", 2), // the attempt that stops at the failpoint
		of("WARN", "takeover", "", 3),
		of("INFO", "lock_acquired", "", 3),
		of("INFO", "lock_released", "partial", 3),
	}
	if diff := cmp.Diff(want, slices.DeleteFunc(log.all(t), beaten)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if counted.takenOver.Load() != 1 || counted.inProgress.Load() != 1 {
		t.Errorf("%d takeovers, %d in progress", counted.takenOver.Load(), counted.inProgress.Load())
	}
}
