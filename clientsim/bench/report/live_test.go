package report

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// screen is a terminal that understands Live's output.
type screen struct {
	t    *testing.T
	rows []string
	at   int // the row that is written to
}

func (s *screen) Write(text []byte) (int, error) {
	rest := string(text)
	for rest != "" {
		switch {
		case strings.HasPrefix(rest, "\x1b[?7l"), strings.HasPrefix(rest, "\x1b[?7h"):
			rest = rest[5:]
		case strings.HasPrefix(rest, "\x1b[J"):
			s.rows = append(s.rows[:s.at], "")
			rest = rest[3:]
		case strings.HasPrefix(rest, "\x1b["):
			var up int
			if _, err := fmt.Sscanf(rest, "\x1b[%dA", &up); err != nil || up > s.at {
				s.t.Fatalf("%q at row %d", rest, s.at)
			}
			s.at -= up
			_, rest, _ = strings.Cut(rest, "A")
		case rest[0] == '\r':
			rest = rest[1:]
		case rest[0] == '\n':
			s.at++
			rest = rest[1:]
		default:
			r, size := utf8.DecodeRuneInString(rest)
			for len(s.rows) <= s.at {
				s.rows = append(s.rows, "")
			}
			s.rows[s.at] += string(r)
			rest = rest[size:]
		}
	}
	return len(text), nil
}

func (s *screen) String() string { return strings.TrimRight(strings.Join(s.rows, "\n"), "\n") }

func onScreen(t *testing.T, columns int) (*Live, *screen) {
	s := &screen{t: t}
	l := NewLive(s)
	l.columns = func() int { return columns }
	return l, s
}

func second(n int, done int64) Second {
	return Second{At: time.Duration(n) * time.Second, Done: done, P50: 2 * time.Millisecond, P99: 9 * time.Millisecond}
}

func TestLiveOnTerminal(t *testing.T) {
	t.Parallel()
	l, s := onScreen(t, 80)
	l.Line("made ready")
	l.Begin("batched, turn 1 of 2", 10*time.Second)
	l.Second(second(1, 500))
	l.Second(second(2, 1000))
	want := "made ready\nbatched, turn 1 of 2   2 s of 10 s\n1,000/s   p50 2 ms   p99 9 ms\n▅█ 0–1,000/s"
	if got := s.String(); got != want {
		t.Errorf("the screen shows\n%s\nwant\n%s", got, want)
	}
	l.Line("a node was killed\n")
	l.Begin("alone, turn 1 of 2", 0)
	l.Second(second(1, 0))
	want = "made ready\na node was killed\nbatched, turn 1 of 2: 750/s for 2 s, p50 2 ms, p99 9 ms (medians of its seconds)\n" +
		"alone, turn 1 of 2   1 s\n0/s\n▅█ ▁ 0–1,000/s"
	if got := s.String(); got != want {
		t.Errorf("the screen shows\n%s\nwant\n%s", got, want)
	}
	l.Close()
	l.Close()
	l.Line("bye")
	rows := strings.Split(s.String(), "\n")
	if len(rows) != 5 || rows[4] != "bye" || !strings.HasPrefix(rows[3], "alone, turn 1 of 2: 0/s for 1 s") {
		t.Errorf("the screen shows\n%s", s)
	}
}

func TestLiveIsNoWiderThanTheTerminal(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{0, 40, 57, 200} {
		l, s := onScreen(t, columns)
		l.Begin(strings.Repeat("größer ", 40), time.Minute)
		for n := range 100 {
			l.Second(second(n+1, int64(1000000+n)))
		}
		for _, row := range strings.Split(s.String(), "\n") {
			if n := utf8.RuneCountInString(row); n >= max(minColumns, columns) {
				t.Errorf("%d columns of %d: %s", n, columns, row)
			}
		}
		if bars := strings.Count(s.String(), "█") + strings.Count(s.String(), "▇"); columns == 200 && bars != sparkline {
			t.Errorf("%d bars, want %d", bars, sparkline)
		}
	}
}

func TestLiveElsewhere(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := NewLive(&out)
	l.Second(second(1, 5)) // of no run
	l.Begin("batched, turn 1", time.Minute)
	l.Second(second(1, 500))
	l.Line("a note")
	l.Begin("alone, turn 1", time.Minute)
	l.Close()
	want := "a note\nbatched, turn 1: 500/s for 1 s, p50 2 ms, p99 9 ms (medians of its seconds)\nalone, turn 1: over before its first second\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	NewLive(nil).Line("to nobody")
}

func TestLiveFromMany(t *testing.T) {
	t.Parallel()
	l, s := onScreen(t, 80)
	var wait sync.WaitGroup
	for g := range 4 {
		wait.Go(func() {
			for n := range 50 {
				l.Begin(fmt.Sprint("run ", g), time.Second)
				l.Second(second(n+1, 10))
				l.Line("line")
			}
		})
	}
	wait.Wait()
	l.Close()
	if n := strings.Count(s.String()+"\n", "line\n"); n != 200 {
		t.Errorf("%d lines are on the screen, want 200", n)
	}
}
