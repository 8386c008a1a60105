package attack

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"mlsd/clientsim/xrpc"
)

// Operation is something that honest users do at a steady rate.
type Operation struct {
	Name string
	Rate float64 // per second
	// Do does it once. took is how long the user waited; 0: until Do returned, counted from the
	// time at which it was due.
	Do func(ctx context.Context, i int) (took time.Duration, err error)
}

// The phases of a measurement.
const (
	warming = iota - 1 // not counted
	calm
	attacked
	after
	phases
)

// Figures are the results of one operation in one phase.
type Figures struct {
	Count    int     `json:"count"`
	Success  float64 `json:"success"` // share, 0…1
	Limited  float64 `json:"limited"` // share of 429
	Busy     float64 `json:"busy"`    // share of 503
	P50      float64 `json:"p50"`     // milliseconds, of successes
	P99      float64 `json:"p99"`
	Max      float64 `json:"max"`
	FirstErr string  `json:"firstError,omitempty"`
}

// meter records what honest users notice. It is safe for concurrent use.
type meter struct {
	mu      sync.Mutex // guards what follows
	phase   int
	samples map[string]*[phases]samples
}

type samples struct {
	took          []time.Duration
	limited, busy int
	failed        int // in any way
	firstErr      string
}

func newMeter() *meter { return &meter{phase: warming, samples: map[string]*[phases]samples{}} }

// enter begins a phase. An operation belongs to the phase in which it was due.
func (m *meter) enter(phase int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase = phase
}

func (m *meter) current() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.phase
}

// add records the outcome of one operation.
func (m *meter) add(name string, phase int, took time.Duration, err error) {
	if phase == warming {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.samples[name] == nil {
		m.samples[name] = &[phases]samples{}
	}
	s := &m.samples[name][phase]
	if err == nil {
		s.took = append(s.took, took)
		return
	}
	s.failed++
	if s.firstErr == "" {
		s.firstErr = err.Error()
	}
	var named *xrpc.CallError
	if errors.As(err, &named) {
		switch named.Status {
		case http.StatusTooManyRequests:
			s.limited++
		case http.StatusServiceUnavailable:
			s.busy++
		}
	}
}

// figures returns the results by operation and phase.
func (m *meter) figures() map[string][phases]Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string][phases]Figures{}
	for name, byPhase := range m.samples {
		var f [phases]Figures
		for i := range byPhase {
			f[i] = byPhase[i].figures()
		}
		all[name] = f
	}
	return all
}

func (s *samples) figures() Figures {
	f := Figures{Count: len(s.took) + s.failed, FirstErr: s.firstErr}
	if f.Count == 0 {
		return f
	}
	n := float64(f.Count)
	f.Success, f.Limited, f.Busy = float64(len(s.took))/n, float64(s.limited)/n, float64(s.busy)/n
	sorted := slices.Sorted(slices.Values(s.took))
	f.P50, f.P99, f.Max = percentile(sorted, 0.50), percentile(sorted, 0.99), percentile(sorted, 1)
	return f
}

// percentile returns the value in milliseconds that a share p of the sorted values does not exceed
// (nearest rank). Of fewer than 100 values, p99 is the greatest.
func percentile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p * float64(len(sorted))))
	return float64(sorted[max(rank, 1)-1]) / float64(time.Millisecond)
}

// honestLanes is how many of one operation's calls are unanswered at most. Calls beyond count as
// failed.
const honestLanes = 2048

var errTooMany = errors.New("too many calls are unanswered")

// keep does an operation at its rate until ctx ends, and waits for the last answers.
func (m *meter) keep(ctx context.Context, op Operation) {
	free := make(chan struct{}, honestLanes)
	var running sync.WaitGroup
	defer running.Wait()
	calls := context.WithoutCancel(ctx) // a call that was due is answered
	began := time.Now()
	for i := 0; ; i++ {
		due := began.Add(time.Duration(float64(i) / op.Rate * float64(time.Second)))
		if !sleepUntil(ctx, due) {
			return
		}
		phase := m.current()
		select {
		case free <- struct{}{}:
		default:
			m.add(op.Name, phase, 0, errTooMany)
			continue
		}
		running.Go(func() {
			defer func() { <-free }()
			took, err := op.Do(calls, i)
			if took == 0 {
				took = time.Since(due)
			}
			m.add(op.Name, phase, took, err)
		})
	}
}

// Spans are the lengths of the phases.
type Spans struct{ Warm, Calm, Attack, After time.Duration }

// measure keeps the operations going through all phases, and runs attack in the second one. It
// calls entering at the beginning of each phase.
func measure(ctx context.Context, m *meter, ops []Operation, s Spans, attack func(context.Context) error, entering func(phase int) error) error {
	ctx, stop := context.WithCancel(ctx)
	var honest sync.WaitGroup
	for _, op := range ops {
		honest.Go(func() { m.keep(ctx, op) })
	}
	defer func() {
		stop()
		honest.Wait()
	}()
	xrpc.Sleep(ctx, s.Warm)
	if err := entering(calm); err != nil {
		return err
	}
	m.enter(calm)
	xrpc.Sleep(ctx, s.Calm)
	if err := entering(attacked); err != nil {
		return err
	}
	m.enter(attacked)
	attacking, end := context.WithTimeout(ctx, s.Attack)
	defer end()
	failed := make(chan error, 1)
	go func() { failed <- attack(attacking) }()
	<-attacking.Done()
	m.enter(after)
	if err := errors.Join(<-failed, entering(after)); err != nil {
		return err
	}
	xrpc.Sleep(ctx, s.After)
	return context.Cause(ctx)
}
