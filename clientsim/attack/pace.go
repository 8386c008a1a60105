package attack

import (
	"context"
	"errors"
	"sync"
	"time"
)

// group runs functions at once and keeps their errors.
type group struct {
	running sync.WaitGroup
	mu      sync.Mutex // guards errs
	errs    []error
}

func (g *group) run(f func() error) {
	g.running.Go(func() {
		if err := f(); err != nil {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.errs = append(g.errs, err)
		}
	})
}

// wait returns the errors of all functions when they have returned.
func (g *group) wait() error {
	g.running.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.errs...)
}

// pace calls do rate times a second until ctx ends. At most lanes calls run at once; when all are
// busy, calls are left out. It returns when the last call has returned.
func pace(ctx context.Context, rate float64, lanes int, do func(ctx context.Context, i int)) {
	free := make(chan struct{}, lanes)
	var running sync.WaitGroup
	defer running.Wait()
	began := time.Now()
	for i := 0; ; i++ {
		if !sleepUntil(ctx, began.Add(time.Duration(float64(i)/rate*float64(time.Second)))) {
			return
		}
		select {
		case free <- struct{}{}:
		default:
			continue
		}
		running.Go(func() {
			defer func() { <-free }()
			do(ctx, i)
		})
	}
}

// sleepUntil waits and reports whether ctx still lasts.
func sleepUntil(ctx context.Context, at time.Time) bool {
	wait := time.Until(at)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
