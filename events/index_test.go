package events_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/events"
)

// index indexes parts of at least part places, and returns the rows as "seqs of a convo".
func (w *world) index(t *testing.T, part int, convos ...uuid.UUID) (rows []string) {
	t.Helper()
	if err := events.NewPartIndex(w.db, part).RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := w.db.Query(t.Context(), `SELECT convo_id, seqs FROM convo_events ORDER BY last`)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var convo uuid.UUID
		var seqs []int64
		if err := found.Scan(&convo, &seqs); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, fmt.Sprintf("%d %v", slices.Index(convos, convo), seqs))
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// A row of the index stands for the messages of a convo in a part of the stream, three at most in
// this test. A part that is too short waits, until its day is over. Rows of another day begin anew,
// and go with their day.
func TestIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := w.index(t, 8); got != nil {
		t.Errorf("of a stream that has not begun it indexes %q", got)
	}
	n := w.node(t)
	a, b := w.convo(t, alice), w.convo(t, alice)
	w.sayTogether(t, alice, a, b, a, a, a)
	n.publish(t)
	if got := w.index(t, 8, a, b); got != nil {
		t.Errorf("7 places, and it indexes %q", got)
	}
	w.sayTogether(t, alice, b, b)
	w.say(t, a, alice, 1) // alone: its own row of events leads to it
	n.publish(t)
	want := []string{"0 [1 2 3]", "0 [4]", "1 [1 2 3]"}
	if got := w.index(t, 8, a, b); !slices.Equal(got, want) {
		t.Errorf("the index is %q, want %q", got, want)
	}
	w.sayTogether(t, alice, a, b)
	n.publish(t)
	if got := w.index(t, 8, a, b); !slices.Equal(got, want) {
		t.Errorf("2 places, and the index is %q", got)
	}
	n.seq.Ahead(24 * time.Hour)
	w.sayTogether(t, alice, b, a)
	n.publish(t)
	want = append(want, "0 [6]", "1 [4]")
	if got := w.index(t, 8, a, b); !slices.Equal(got, want) {
		t.Errorf("a day later the index is %q, want %q", got, want)
	}
	n.seq.Ahead(9 * 24 * time.Hour)
	w.sayTogether(t, alice, a)
	n.publish(t)
	if got := w.index(t, 8, a, b); !slices.Equal(got, []string{"1 [5]", "0 [7]"}) { // the day of the newest event was kept
		t.Errorf("after the first day was dropped the index is %q", got)
	}
}

// A node that starts remembers what is not indexed: nobody else could find it quickly.
func TestHubRemembersWhatIsNotIndexed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.node(t)
	convo := w.convo(t, alice)
	w.sayTogether(t, alice, slices.Repeat([]uuid.UUID{convo}, 30)...)
	first.publish(t)
	w.index(t, 10)
	w.sayTogether(t, alice, slices.Repeat([]uuid.UUID{convo}, 9)...)
	first.publish(t)
	w.index(t, 10)
	second := w.node(t)
	if _, err := second.hub.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	for from := range int64(42) {
		s := second.subscribe(t, alice, from)
		if from <= 1 {
			want(t, next(t, s, 1), "alice joined")
		}
		for seq := max(from-1, 1); seq <= 39; seq++ {
			want(t, next(t, s, 1), fmt.Sprint(seq))
		}
		nothing(t, s)
		s.Close()
	}
}

// While the index is further behind than the hub remembers, a reader waits for it.
func TestReaderWaitsForIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	convo := w.convo(t, alice)
	w.sayTogether(t, alice, convo, convo)
	n.publish(t)
	n.hub.ForgetAll()
	s := n.subscribe(t, alice, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if e, err := s.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it got %v, %v, and nothing leads there", e, err)
	}
	n.hub.Forget(t, 1)
	want(t, next(t, s, 3), "alice joined", "1", "2")
}

// The index goes on where the stream does, after days were dropped that it had not reached.
func TestIndexAfterDroppedDays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node(t)
	convo := w.convo(t, alice)
	w.sayTogether(t, alice, slices.Repeat([]uuid.UUID{convo}, 9)...)
	n.publish(t)
	if _, err := w.db.Exec(t.Context(), `UPDATE convo_events_end SET last = -100000`); err != nil {
		t.Fatal(err)
	}
	if got := w.index(t, 8, convo); !slices.Equal(got, []string{"0 [1 2 3]", "0 [4 5 6]", "0 [7 8 9]"}) {
		t.Errorf("the index is %q", got)
	}
}

// A reader that finds nothing for long, as one that waits for the index, still has a window.
func TestWindowHasABound(t *testing.T) {
	t.Parallel()
	if window := events.WindowAfter(1000); window < 1<<32 {
		t.Errorf("after a thousand empty pages the window is %d", window)
	}
}
