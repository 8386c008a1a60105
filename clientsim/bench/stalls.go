package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"mlsd/clientsim/bench/report"
)

// A probe writes and flushes a small file every probeEvery, on the disk of the database. A stall is a
// flush that takes stallAfter, or a sleep that ends so much too late. A flush on a busy machine can
// also have waited for a processor: then sleeps end late in the same run.
const (
	probeEvery = 10 * time.Millisecond
	stallAfter = 8 * time.Millisecond
)

// stall is a time in which the disk or the processors did not work for the probe, in ns of a window.
type stall struct {
	from, to int64
	disk     bool
}

// delays reports whether a request can have been delayed by the stall. What was due during a stall
// waits for as long again, while the server catches up.
func (s stall) delays(due, done int64) bool { return due < s.to+(s.to-s.from) && done > s.from }

// stallProbe looks for stalls until close.
type stallProbe struct {
	file   *os.File
	closed chan struct{}
	done   sync.WaitGroup

	stalls []stall // in order; belongs to run until done
	err    error
}

// probeStalls begins to look for stalls, with a file in dir.
func probeStalls(dir string, win *window) (*stallProbe, error) {
	file, err := os.Create(filepath.Join(dir, "flush-probe"))
	if err != nil {
		return nil, fmt.Errorf("probe the disk: %w", err)
	}
	p := &stallProbe{file: file, closed: make(chan struct{})}
	p.done.Go(func() { p.err = p.run(win) })
	return p, nil
}

// run probes. It has a thread of its own, so that the load's goroutines do not delay it.
func (p *stallProbe) run(win *window) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	page := make([]byte, 8<<10)
	for {
		select {
		case <-p.closed:
			return nil
		default:
		}
		asleep := win.now()
		kernelSleep(probeEvery)
		awake := win.now()
		if awake-asleep >= int64(probeEvery+stallAfter) {
			p.stalls = append(p.stalls, stall{from: asleep + int64(probeEvery), to: awake})
		}
		if _, err := p.file.WriteAt(page, 0); err != nil {
			return err
		}
		if err := flush(p.file); err != nil {
			return err
		}
		if flushed := win.now(); flushed-awake >= int64(stallAfter) {
			p.stalls = append(p.stalls, stall{from: awake, to: flushed, disk: true})
		}
	}
}

// close ends the probe and removes its file.
func (p *stallProbe) close() ([]stall, error) {
	close(p.closed)
	p.done.Wait()
	return p.stalls, errors.Join(p.err, p.file.Close(), os.Remove(p.file.Name()))
}

// timed is when a request was due, and when it was answered, in ns of a window.
type timed struct{ due, done int64 }

// undelayed returns the latencies of the requests that no stall can have delayed.
func undelayed(requests []timed, stalls []stall) *report.Latency {
	l := report.NewLatency()
	for _, r := range requests {
		if !anyDelays(stalls, r) {
			_ = l.RecordValue(micros(r.done - r.due)) // a value beyond the histogram is left out, as elsewhere
		}
	}
	return l
}

func anyDelays(stalls []stall, r timed) bool {
	for _, s := range stalls {
		if s.delays(r.due, r.done) {
			return true
		}
	}
	return false
}

// tail is the latency of one turn, with and without stalls.
type tail struct {
	p50, p99             time.Duration
	without50, without99 time.Duration
}

// tailOf describes a turn's latency with and without the stalls of the disk.
func (b *bench) tailOf(r *report.Run, requests []timed, stalls []stall) tail {
	at := func(l *report.Latency, q float64) time.Duration {
		return time.Duration(l.ValueAtQuantile(q)) * time.Microsecond
	}
	var disk []stall
	var lost, late time.Duration
	for _, s := range stalls {
		if s.disk {
			disk, lost = append(disk, s), lost+time.Duration(s.to-s.from)
		} else {
			late += time.Duration(s.to - s.from)
		}
	}
	all, without := r.Operations[opSend.String()].Latency, undelayed(requests, disk)
	t := tail{at(all, 50), at(all, 99), at(without, 50), at(without, 99)}
	b.note("%s, turn %d: p50 %s, p99 %s; without the %d requests around %d stalls of the disk (%s in all) p50 %s, p99 %s; the probe was woken late %d times (%s in all)",
		r.Variant, r.Turn+1, t.p50, t.p99, all.TotalCount()-without.TotalCount(), len(disk), lost.Round(time.Millisecond),
		t.without50, t.without99, len(stalls)-len(disk), late.Round(time.Millisecond))
	return t
}

// noteTails notes p99 ÷ p50 in the median of the turns, with and without the stalls of the disk.
func (b *bench) noteTails(tails []tail) {
	if len(tails) == 0 { // enough messages came before
		return
	}
	var all, without []float64
	for _, t := range tails {
		all = append(all, float64(t.p99)/float64(t.p50))
		without = append(without, float64(t.without99)/float64(t.without50))
	}
	slices.Sort(all)
	slices.Sort(without)
	b.note("p99 ÷ p50 in the median of %d turns: %.1f; without the stalls of the disk %.1f", len(tails), all[len(all)/2], without[len(without)/2])
}
