package bench

import (
	"runtime"
	"time"
)

// pacer hands out the times at which requests are due, at a fixed rate, whether or not earlier ones
// are answered.
type pacer struct {
	every float64    // ns between two requests
	due   chan int64 // due times, in the window's time; closed at the end
	// backlog is the largest number of due requests that had not begun.
	backlog int64
}

// mostDue is how many due requests may wait. After that the pacer waits. Latencies still count from
// the due time.
const mostDue = 1 << 16

func newPacer(rate float64) *pacer {
	return &pacer{every: float64(time.Second) / rate, due: make(chan int64, mostDue)}
}

// run paces until the window closes, and hands out everything that was due before. It sleeps on its
// own thread: Go's timers may be a millisecond late on an idle machine, which is more than some of
// these requests take.
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
			kernelSleep(min(time.Duration(next-now), 10*time.Millisecond))
			continue
		}
		select {
		case p.due <- next:
			n++
			p.backlog = max(p.backlog, int64(len(p.due)))
		default:
			p.backlog = mostDue
			kernelSleep(time.Millisecond)
		}
	}
}
