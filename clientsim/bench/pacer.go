package bench

import (
	"runtime"
	"time"
)

// pacer says when requests are due: so many a second, whatever becomes of those before.
type pacer struct {
	every float64    // ns between two
	due   chan int64 // when each was due, in the window's time; closed at the end
	// backlog is the most that were due at one time and that nobody had begun.
	backlog int64
}

// mostDue bounds those that wait. Beyond it the pacer waits itself, and what is due then still counts from when it was due.
const mostDue = 1 << 16

func newPacer(rate float64) *pacer {
	return &pacer{every: float64(time.Second) / rate, due: make(chan int64, mostDue)}
}

// run paces until the window closes, and leaves nothing out that was due before. It sleeps on a thread of its own: Go's timers are up to a millisecond late on a machine that has
// nothing else to do, which is more than some of these requests take.
func (p *pacer) run(win *window) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.due)
	begin := win.now()
	for n := 0; ; {
		next := begin + int64(float64(n)*p.every)
		if closes := win.closes.Load(); closes != 0 && next >= closes {
			return
		}
		if now := win.now(); now < next {
			nap(min(time.Duration(next-now), 10*time.Millisecond))
			continue
		}
		select {
		case p.due <- next:
			n++
			p.backlog = max(p.backlog, int64(len(p.due)))
		default:
			p.backlog = mostDue
			nap(time.Millisecond)
		}
	}
}
