// Package failpoint injects faults into writes at named points, such as between a COMMIT and its
// answer. Tests use it to show what survives. Production has a nil *Set, which does nothing.
package failpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
)

// Points at which a fault can be armed.
const (
	BeforeCommit  = "before-commit"
	AfterCommit   = "after-commit"
	BeforeReserve = "before-reserve" // the key of work outside the database is not yet reserved
	AfterReserve  = "after-reserve"  // the key is reserved, and the work has not begun
	AfterWork     = "after-work"     // the work is done, and not yet recorded
	Heartbeat     = "heartbeat"      // a lease is about to be extended
)

var points = []string{BeforeCommit, AfterCommit, BeforeReserve, AfterReserve, AfterWork, Heartbeat}

// Action is what happens at an armed point.
type Action string

const (
	Kill  Action = "kill"  // this process gets SIGKILL: it flushes and answers nothing
	Error Action = "error" // the write fails with ErrInjected, as if its connection were lost there
	Pause Action = "pause" // the write waits until Resume, or until its context ends
)

// ErrInjected is the failure of a point armed with Error.
var ErrInjected = errors.New("injected fault")

// Set holds the armed points. Each point fires once.
type Set struct {
	mu     sync.Mutex // guards armed and pauses
	armed  map[point]Action
	pauses map[point]*pause
}

type point struct{ name, method string }

// pause holds the signals between a paused write and its test. Each channel is closed once.
type pause struct{ reached, resume chan struct{} }

// New returns an empty set.
func New() *Set { return &Set{armed: map[point]Action{}, pauses: map[point]*pause{}} }

// Arm makes the next write of method (an NSID) that reaches name perform action, once.
func (s *Set) Arm(name, method string, action Action) error {
	if !slices.Contains(points, name) {
		return fmt.Errorf("unknown failpoint %q", name)
	}
	if action != Kill && action != Error && action != Pause {
		return fmt.Errorf("unknown failpoint action %q", action)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := point{name, method}
	s.armed[p] = action
	if action == Pause {
		s.pauses[p] = &pause{reached: make(chan struct{}), resume: make(chan struct{})}
	}
	return nil
}

// Reached returns a channel that is closed when a write waits at a point armed with Pause.
func (s *Set) Reached(name, method string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pauses[point{name, method}].reached
}

// Resume lets the paused write go on.
func (s *Set) Resume(name, method string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := point{name, method}
	close(s.pauses[p].resume)
	delete(s.pauses, p)
}

// Hook returns a function that hits a point. Without a set it returns nil: no point can be armed.
func (s *Set) Hook(ctx context.Context, name, method string) func() error {
	if s == nil {
		return nil
	}
	return func() error { return s.Hit(ctx, name, method) }
}

// Hit performs the action of a point. A write of method calls it when it reaches name.
func (s *Set) Hit(ctx context.Context, name, method string) error {
	if s == nil {
		return nil
	}
	p := point{name, method}
	s.mu.Lock()
	action, armed := s.armed[p]
	delete(s.armed, p)
	paused := s.pauses[p]
	s.mu.Unlock()
	if !armed {
		return nil
	}
	switch action {
	case Kill:
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {} // until the signal arrives, the write must not go on
	case Pause:
		close(paused.reached)
		select {
		case <-paused.resume:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	default:
		return fmt.Errorf("%s %s: %w", name, method, ErrInjected)
	}
}
