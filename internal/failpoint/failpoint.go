// Package failpoint stops a write at a named point so that tests can show what survives: before its COMMIT, or after the
// COMMIT and before the answer. A nil *Set, which is what runs in production, does nothing.
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

// Points of a write at which a fault can be armed.
const (
	BeforeCommit  = "before-commit"
	AfterCommit   = "after-commit"
	BeforeReserve = "before-reserve" // of work outside the database: before its key is reserved
	AfterReserve  = "after-reserve"  // before it begins
	AfterWork     = "after-work"     // it is done, and not yet recorded
	Heartbeat     = "heartbeat"      // a lease is about to be extended
)

var points = []string{BeforeCommit, AfterCommit, BeforeReserve, AfterReserve, AfterWork, Heartbeat}

// Action is what happens at an armed point.
type Action string

const (
	Kill  Action = "kill"  // SIGKILL to this process: nothing is flushed, nothing is answered
	Error Action = "error" // the write fails with ErrInjected, as if its connection were lost there
	Pause Action = "pause" // the write waits until Resume, or until its context ends
)

// ErrInjected is the failure of a point armed with Error.
var ErrInjected = errors.New("injected fault")

// Set holds the armed points. Each fires once.
type Set struct {
	mu    sync.Mutex // guards armed and gates
	armed map[point]Action
	gates map[point]*gate
}

type point struct{ name, method string }

// gate is where a paused write and the test that paused it meet.
type gate struct{ reached, resume chan struct{} }

// New returns an empty set.
func New() *Set { return &Set{armed: map[point]Action{}, gates: map[point]*gate{}} }

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
		s.gates[p] = &gate{reached: make(chan struct{}), resume: make(chan struct{})}
	}
	return nil
}

// Reached is closed when a write waits at a point armed with Pause.
func (s *Set) Reached(name, method string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gates[point{name, method}].reached
}

// Resume lets the paused write go on.
func (s *Set) Resume(name, method string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := point{name, method}
	close(s.gates[p].resume)
	delete(s.gates, p)
}

// Armed reports whether the next write of method that comes to name will perform an action there.
func (s *Set) Armed(name, method string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, armed := s.armed[point{name, method}]
	return armed
}

// Hit is called by a write of method that has come to name.
func (s *Set) Hit(ctx context.Context, name, method string) error {
	if s == nil {
		return nil
	}
	p := point{name, method}
	s.mu.Lock()
	action, armed := s.armed[p]
	delete(s.armed, p)
	gate := s.gates[p]
	s.mu.Unlock()
	if !armed {
		return nil
	}
	switch action {
	case Kill:
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {} // the signal is on its way; do not run one instruction more of the write
	case Pause:
		close(gate.reached)
		select {
		case <-gate.resume:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	default:
		return fmt.Errorf("%s %s: %w", name, method, ErrInjected)
	}
}
