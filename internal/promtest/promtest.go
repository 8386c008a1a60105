// Package promtest evaluates PromQL with Prometheus' own engine over series in memory. Only tests
// import it.
package promtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// Storage is a [storage.Queryable] in memory. Make one with New. It is for one goroutine.
type Storage struct {
	engine *promql.Engine
	series []promql.Series
	places map[string]int             // indexes in series, by the labels
	fresh  map[string][]labels.Labels // the series of the last scrape, by its target
	named  map[string][]int           // indexes in series, by the metric's name
}

// New returns a storage without series.
func New() *Storage {
	return &Storage{
		engine: promql.NewEngine(promql.EngineOpts{
			MaxSamples: 1e6, Timeout: time.Minute,
			NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
		}),
		places: map[string]int{}, named: map[string][]int{}, fresh: map[string][]labels.Labels{},
	}
}

// Append adds a value to the series of metric. The values of a series must come in the order of
// time.
func (s *Storage) Append(metric labels.Labels, at time.Time, v float64) {
	name := metric.String()
	i, known := s.places[name]
	if !known {
		i = len(s.series)
		s.places[name] = i
		s.named[metric.Get(model.MetricNameLabel)] = append(s.named[metric.Get(model.MetricNameLabel)], i)
		s.series = append(s.series, promql.Series{Metric: metric})
	}
	s.series[i].Floats = append(s.series[i].Floats, promql.FPoint{T: at.UnixMilli(), F: v})
}

// Record adds the result of a recording rule of that name.
func (s *Storage) Record(name string, result promql.Vector, at time.Time) {
	for _, sample := range result {
		s.Append(labels.NewBuilder(sample.Metric).Set(model.MetricNameLabel, name).Labels(), at, sample.F)
	}
}

// Scrape adds the samples of a page in the text format of Prometheus, with the labels of the page's
// target. It also adds that the target is up. A series ends if the target's page before had it, and
// this page does not. If page is nil, the target does not answer.
func (s *Storage) Scrape(page []byte, at time.Time, target labels.Labels) error {
	before := s.fresh[target.String()]
	s.fresh[target.String()] = nil
	up, err := 0.0, error(nil)
	if page != nil {
		up, err = 1, s.read(page, at, target)
	}
	s.Append(labels.NewBuilder(target).Set(model.MetricNameLabel, "up").Labels(), at, up)
	for _, metric := range before {
		if place := s.series[s.places[metric.String()]]; place.Floats[len(place.Floats)-1].T != at.UnixMilli() {
			s.Append(metric, at, math.Float64frombits(value.StaleNaN))
		}
	}
	return err
}

func (s *Storage) read(page []byte, at time.Time, target labels.Labels) error {
	parser := textparse.NewPromParser(page, labels.NewSymbolTable(), false)
	for {
		entry, err := parser.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the page: %w", err)
		case entry != textparse.EntrySeries:
			continue
		}
		var metric labels.Labels
		parser.Labels(&metric)
		_, _, v := parser.Series()
		all := labels.NewBuilder(metric)
		target.Range(func(l labels.Label) { all.Set(l.Name, l.Value) })
		s.Append(all.Labels(), at, v)
		s.fresh[target.String()] = append(s.fresh[target.String()], all.Labels())
	}
}

// Query evaluates an expression at a time.
func (s *Storage) Query(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
	q, err := s.engine.NewInstantQuery(ctx, s, nil, expr, at)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return nil, result.Err
	}
	vector, err := result.Vector()
	return slices.Clone(vector), err
}

// Querier implements [storage.Queryable]. The engine leaves out the samples outside of its range.
func (s *Storage) Querier(_, _ int64) (storage.Querier, error) { return s, nil }

// Select implements [storage.Querier].
func (s *Storage) Select(_ context.Context, _ bool, _ *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, i := range s.named[nameIn(matchers)] {
		one := s.series[i]
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.Metric.Get(m.Name)) }) {
			set.all = append(set.all, one)
		}
	}
	slices.SortFunc(set.all, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	return set
}

// nameIn is the metric that a selector names. Selectors of rules and dashboards name a metric.
func nameIn(matchers []*labels.Matcher) string {
	for _, m := range matchers {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
			return m.Value
		}
	}
	return ""
}

// LabelValues implements [storage.Querier]. Queries do not use it.
func (*Storage) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string,
	annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames implements [storage.Querier]. Queries do not use it.
func (*Storage) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations,
	error) {
	return nil, nil, nil
}

// Close implements [storage.Querier].
func (*Storage) Close() error { return nil }

// seriesSet implements [storage.SeriesSet].
type seriesSet struct {
	all []promql.Series
	at  int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *seriesSet) At() storage.Series                { return promql.NewStorageSeries(s.all[s.at]) }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }
