package console

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// step is the time between two samples of the history.
	step = 10 * time.Second
	// kept is how many samples the history has: an hour.
	kept = 360
)

// sample is the values of all lines of all charts at one moment.
type sample struct {
	at     time.Time
	values []float64 // in the order of the charts and their lines
}

// history is the last hour of this node. It is in memory only.
type history struct {
	from   prometheus.Gatherer
	charts []chart

	mu      sync.Mutex // guards the rest
	samples []sample   // the oldest first
	// before and last are the readings of the last two steps. So the live values are of the last 10 to
	// 20 s.
	before, last reading
}

func newHistory(from prometheus.Gatherer) *history { return &history{from: from, charts: charts()} }

// add takes a sample. It is called once in a step.
func (h *history) add(now time.Time) error {
	r, err := readMetrics(h.from, now)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.last.at.IsZero() {
		h.samples = append(h.samples, h.between(h.last, r))
		h.samples = h.samples[max(0, len(h.samples)-kept):]
	}
	h.before, h.last = h.last, r
	return nil
}

// live returns a sample of the last 10 to 20 s.
func (h *history) live(now time.Time) (sample, error) {
	r, err := readMetrics(h.from, now)
	if err != nil {
		return sample{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.before.at.IsZero():
		return h.between(h.before, r), nil
	case !h.last.at.IsZero():
		return h.between(h.last, r), nil
	}
	return h.between(r, r), nil
}

// between returns the values between two readings.
func (h *history) between(before, now reading) sample {
	s := sample{at: now.at}
	for _, c := range h.charts {
		for _, l := range c.Lines {
			s.values = append(s.values, l.value(before, now))
		}
	}
	return s
}

// newest returns the last reading.
func (h *history) newest() reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// hour returns the samples of the last hour, the oldest first.
func (h *history) hour() []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]sample(nil), h.samples...)
}

// of returns the values of one line in some samples.
func of(samples []sample, line int) []float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = s.values[line]
	}
	return values
}

// highest returns the highest of some values, or 0.
func highest(values []float64) (most float64) {
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			most = max(most, v)
		}
	}
	return most
}
