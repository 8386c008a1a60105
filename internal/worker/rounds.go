package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Rounds remembers the last round of each worker of a node.
type Rounds struct {
	clock  Clock
	mu     sync.Mutex // guards byName
	byName map[string]Round
}

// Round is what a node remembers of one worker.
type Round struct {
	Worker   string
	Interval time.Duration
	At       time.Time // when the last round began; zero if none has ended
	Took     time.Duration
	Rounds   int64
	Failures int64
	FailedAt time.Time // when the last failed round began; zero if none has failed
}

// NewRounds returns an empty memory for workers that use the clock.
func NewRounds(clock Clock) *Rounds { return &Rounds{clock: clock, byName: map[string]Round{}} }

// Every is the function Every for a worker whose rounds are remembered. If the worker ends during a
// round, the round does not count.
func (r *Rounds) Every(name string, interval time.Duration, log *slog.Logger, runOnce func(context.Context) error,
	options ...Option) *Worker {
	r.mu.Lock()
	r.byName[name] = Round{Worker: name, Interval: interval}
	r.mu.Unlock()
	return Every(name, interval, log, func(ctx context.Context) error {
		begun := time.Now()
		err := runOnce(ctx)
		if err == nil || !errors.Is(ctx.Err(), context.Canceled) {
			r.add(name, begun, err)
		}
		return err
	}, append(options, By(r.clock))...)
}

func (r *Rounds) add(name string, begun time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.byName[name]
	one.At, one.Took, one.Rounds = begun, time.Since(begun), one.Rounds+1
	if err != nil {
		one.Failures, one.FailedAt = one.Failures+1, begun
	}
	r.byName[name] = one
}

// List returns the last rounds, in the order of their workers' names.
func (r *Rounds) List() (all []Round) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.byName {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Round) int { return strings.Compare(a.Worker, b.Worker) })
	return all
}

var (
	roundsDesc = prometheus.NewDesc("mlsd_worker_rounds_total",
		"Rounds of the workers of this node, those that failed included.", []string{"worker"}, nil)
	failuresDesc = prometheus.NewDesc("mlsd_worker_failures_total",
		"Rounds of the workers of this node that failed.", []string{"worker"}, nil)
)

// Describe implements prometheus.Collector.
func (r *Rounds) Describe(descs chan<- *prometheus.Desc) {
	descs <- roundsDesc
	descs <- failuresDesc
}

// Collect implements prometheus.Collector.
func (r *Rounds) Collect(metrics chan<- prometheus.Metric) {
	for _, one := range r.List() {
		metrics <- prometheus.MustNewConstMetric(roundsDesc, prometheus.CounterValue, float64(one.Rounds), one.Worker)
		metrics <- prometheus.MustNewConstMetric(failuresDesc, prometheus.CounterValue, float64(one.Failures), one.Worker)
	}
}
