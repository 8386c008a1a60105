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
	// kept is how many samples the history has: those of an hour.
	kept = 360
)

// sample holds the values of all lines of all charts at one time.
type sample struct {
	at     time.Time
	values []float64 // in the order of the charts and their lines
}

// totals has what failed, and all, of each aim at one time.
type totals []struct{ failed, all float64 }

// history is the last hour of this node. It is only in memory.
type history struct {
	from   prometheus.Gatherer
	charts []chart
	aims   []aim

	mu      sync.Mutex // guards the fields below
	samples []sample   // the oldest first
	totals  []totals   // of the aims, at each step; the oldest first
	// before and last are the readings of the last two steps. So the live values cover the last 10
	// to 20 seconds.
	before, last reading
}

func newHistory(from prometheus.Gatherer) *history {
	return &history{from: from, charts: charts(), aims: aims()}
}

// add takes a sample. It is called once per step.
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
	next, n := make(totals, len(h.aims)), len(h.totals)
	for i, a := range h.aims {
		next[i].failed, next[i].all = a.failed(r), a.all(r)
	}
	h.totals = append(h.totals[max(0, n-kept):], next)
	return nil
}

// reached returns what the aims' counters have counted in the last hour.
func (h *history) reached() []reached {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]reached, len(h.aims))
	for i, a := range h.aims {
		all[i].aim = a
		if n := len(h.totals); n > 0 {
			first, last := h.totals[0][i], h.totals[n-1][i]
			all[i].Failed, all[i].All = int64(last.failed-first.failed), int64(last.all-first.all)
		}
	}
	return all
}

// live returns a sample of the last 10 to 20 seconds.
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

// reading holds the values of metrics at one time.
type reading struct {
	at       time.Time
	families map[string][]metric // by name
}

// metric is one value of a metric.
type metric struct {
	labels  map[string]string
	value   float64  // of a counter or gauge
	sum     float64  // of a histogram
	count   float64  // of a histogram
	buckets []bucket // of a histogram, in the order of their bounds
}

// bucket counts the observations of a histogram up to a bound.
type bucket struct{ bound, count float64 }

// readMetrics reads all metrics of a registry. Metrics that cannot be read are left out. It returns
// an error if no metric can be read.
func readMetrics(from prometheus.Gatherer, at time.Time) (reading, error) {
	families, err := from.Gather()
	if err != nil && len(families) == 0 {
		return reading{}, err
	}
	r := reading{at: at, families: make(map[string][]metric, len(families))}
	for _, f := range families {
		all := make([]metric, 0, len(f.Metric))
		for _, m := range f.Metric {
			one := metric{labels: make(map[string]string, len(m.Label)),
				value: m.GetCounter().GetValue() + m.GetGauge().GetValue()}
			for _, l := range m.Label {
				one.labels[l.GetName()] = l.GetValue()
			}
			if h := m.GetHistogram(); h != nil {
				one.sum, one.count = h.GetSampleSum(), float64(h.GetSampleCount())
				for _, b := range h.Bucket {
					one.buckets = append(one.buckets, bucket{b.GetUpperBound(), float64(b.GetCumulativeCount())})
				}
			}
			all = append(all, one)
		}
		r.families[f.GetName()] = all
	}
	return r, nil
}

// matcher chooses the metrics that count, by their labels.
type matcher func(labels map[string]string) bool

func every(map[string]string) bool { return true }

// labelled matches metrics with a value of a label.
func labelled(name, value string) matcher {
	return func(labels map[string]string) bool { return labels[name] == value }
}

// sum adds the values of a metric.
func (r reading) sum(name string, matches matcher) (total float64) {
	for _, m := range r.families[name] {
		if matches(m.labels) {
			total += m.value
		}
	}
	return total
}

// histogram adds the histograms of a metric. All histograms of one metric have the same bounds.
func (r reading) histogram(name string, matches matcher) (h metric) {
	for _, m := range r.families[name] {
		if !matches(m.labels) {
			continue
		}
		h.sum, h.count = h.sum+m.sum, h.count+m.count
		if h.buckets == nil {
			h.buckets = append(h.buckets, m.buckets...)
			continue
		}
		for i := range m.buckets {
			h.buckets[i].count += m.buckets[i].count
		}
	}
	return h
}

// since returns what a histogram has observed since an earlier reading.
func (m metric) since(before metric) metric {
	diff := metric{sum: m.sum - before.sum, count: m.count - before.count}
	for i, b := range m.buckets {
		if i < len(before.buckets) {
			b.count -= before.buckets[i].count
		}
		diff.buckets = append(diff.buckets, b)
	}
	return diff
}

// quantile estimates a quantile of a histogram's observations, as Prometheus does. It is NaN if
// there are no observations.
func (m metric) quantile(q float64) float64 {
	if m.count == 0 {
		return math.NaN()
	}
	rank, lower, below := q*m.count, 0.0, 0.0
	for _, b := range m.buckets {
		if b.count >= rank && !math.IsInf(b.bound, 1) {
			if b.count == below {
				return b.bound
			}
			return lower + (b.bound-lower)*(rank-below)/(b.count-below)
		}
		if !math.IsInf(b.bound, 1) {
			lower, below = b.bound, b.count
		}
	}
	return lower // above the last bound
}

// mean returns the mean of a histogram's observations. It is NaN if there are no observations.
func (m metric) mean() float64 {
	if m.count == 0 {
		return math.NaN()
	}
	return m.sum / m.count
}
