package report

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Live shows a running benchmark. On a terminal it redraws a small block every second. Elsewhere it
// prints a line per run. It has no goroutine of its own, and its methods are safe for concurrent
// use.
type Live struct {
	mu      sync.Mutex // guards everything below, and the writing
	out     io.Writer
	columns func() int // nil if out is no terminal
	drawn   int        // lines of the block that are on the screen

	run     string // empty if none is under way
	of      time.Duration
	seconds []Second  // of this run
	rates   []float64 // of the last minute, across runs; negative where a run begins
}

const (
	minColumns = 40
	sparkline  = 60 // seconds
)

// NewLive writes to w, such as os.Stderr. With nil it writes nothing.
func NewLive(w io.Writer) *Live {
	if w == nil {
		w = io.Discard
	}
	l := &Live{out: w}
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		l.columns = func() int {
			columns, _, err := term.GetSize(int(file.Fd()))
			if err != nil || columns <= 0 {
				return 80
			}
			return columns
		}
	}
	return l
}

// Begin begins a run, such as "batched, turn 2 of 5", and ends the one before. of is its length, 0
// if unknown.
func (l *Live) Begin(run string, of time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := l.over()
	l.run, l.of = run, of
	if len(l.rates) > 0 {
		l.rates = append(l.rates, -1)
	}
	l.draw(over)
}

// Second adds a second to the present run, if there is one.
func (l *Live) Second(s Second) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.run == "" {
		return
	}
	l.seconds = append(l.seconds, s)
	l.rates = append(l.rates, rateAt(l.seconds, len(l.seconds)-1))
	l.rates = l.rates[max(0, len(l.rates)-sparkline):]
	if l.columns != nil {
		l.draw("")
	}
}

// Line prints a line that stays.
func (l *Live) Line(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draw(strings.TrimRight(text, "\n") + "\n")
}

// Close ends the present run and removes the block. Line still prints after it.
func (l *Live) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draw(l.over())
}

// over ends the present run and returns its summary line.
func (l *Live) over() string {
	run, seconds := l.run, l.seconds
	l.run, l.seconds = "", nil
	if run == "" {
		return ""
	}
	if len(seconds) == 0 {
		return run + ": over before its first second\n"
	}
	var done int64
	var p50, p99 []float64
	for _, s := range seconds {
		done += s.Done
		if s.Done > 0 {
			p50, p99 = append(p50, float64(s.P50.Microseconds())), append(p99, float64(s.P99.Microseconds()))
		}
	}
	at := seconds[len(seconds)-1].At
	return fmt.Sprintf("%s: %s/s for %s, p50 %s, p99 %s (medians of its seconds)\n", run,
		significant(float64(done)/at.Seconds()), durationText(at), latencyText(median(p50)), latencyText(median(p99)))
}

// rateAt is requests per second of the i-th second, which may have been a little longer or shorter.
func rateAt(seconds []Second, i int) float64 {
	from := time.Duration(0)
	if i > 0 {
		from = seconds[i-1].At
	}
	if seconds[i].At <= from {
		return 0
	}
	return float64(seconds[i].Done) / (seconds[i].At - from).Seconds()
}

// draw replaces the block in one write, so that it does not flicker. It ignores errors, because
// they cannot be reported.
func (l *Live) draw(stays string) {
	if l.columns == nil {
		_, _ = io.WriteString(l.out, stays)
		return
	}
	var text strings.Builder
	if l.drawn > 0 {
		fmt.Fprintf(&text, "\r\x1b[%dA\x1b[J", l.drawn)
	}
	text.WriteString(stays)
	block := l.block(max(minColumns, l.columns()) - 1)
	if len(block) > 0 {
		// Line wrapping is off, so that the block keeps its height on a narrow terminal.
		text.WriteString("\x1b[?7l" + strings.Join(block, "\n") + "\n\x1b[?7h")
	}
	l.drawn = len(block)
	_, _ = io.WriteString(l.out, text.String())
}

// block returns the present block, in lines of at most columns columns.
func (l *Live) block(columns int) []string {
	if l.run == "" {
		return nil
	}
	now, at := none+"/s", time.Duration(0)
	if n := len(l.seconds); n > 0 {
		s := l.seconds[n-1]
		at = s.At
		now = significant(rateAt(l.seconds, n-1)) + "/s"
		if s.Done > 0 {
			now += fmt.Sprintf("   p50 %s   p99 %s", durationText(s.P50), durationText(s.P99))
		}
	}
	elapsed := fmt.Sprintf("%.0f s", at.Seconds())
	if l.of > 0 {
		elapsed += fmt.Sprintf(" of %.0f s", l.of.Seconds())
	}
	name := cut(l.run, columns-len(elapsed)-3)
	return []string{name + "   " + elapsed, cut(now, columns), l.spark(columns)}
}

// cut shortens text to so many columns.
func cut(text string, columns int) string {
	if runes := []rune(text); len(runes) > columns {
		return string(runes[:max(0, columns-1)]) + "…"
	}
	return text
}

// spark draws the rates of the last minute, as many as fit, from 0 to the greatest.
func (l *Live) spark(columns int) string {
	bars := []rune("▁▂▃▄▅▆▇█")
	const label = 14
	shown := l.rates[max(0, len(l.rates)-(columns-label)):]
	greatest := 0.0
	for _, rate := range shown {
		greatest = max(greatest, rate)
	}
	var text strings.Builder
	for _, rate := range shown {
		switch {
		case rate < 0:
			text.WriteRune(' ')
		case greatest == 0:
			text.WriteRune(bars[0])
		default:
			text.WriteRune(bars[min(len(bars)-1, int(rate/greatest*float64(len(bars))))])
		}
	}
	if greatest > 0 {
		text.WriteString(" " + "0–" + significant(greatest) + "/s")
	}
	return cut(text.String(), columns)
}
