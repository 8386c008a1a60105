package ops_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"sort"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/util/annotations"
)

// evaluation evaluates rules over the series of one case, from the case's begin on.
type evaluation struct {
	engine *promql.Engine
	series series
	since  map[string]map[string]time.Duration // when an alert became active: by its name, and by its labels
}

func newEvaluation(c ruleCase) (*evaluation, error) {
	e := &evaluation{
		engine: promql.NewEngine(promql.EngineOpts{
			MaxSamples: 1e6, Timeout: time.Minute, NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
		}),
		since: map[string]map[string]time.Duration{},
	}
	for _, s := range c.Series {
		metric, values, err := parser.ParseSeriesDesc(s.Series + " " + s.Values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Series, err)
		}
		points := promql.Series{Metric: metric}
		for i, v := range values {
			if !v.Omitted {
				points.Floats = append(points.Floats, promql.FPoint{T: int64(i) * time.Duration(c.Interval).Milliseconds(), F: v.Value})
			}
		}
		e.series = append(e.series, points)
	}
	return e, nil
}

// at is a time of the case.
func at(now time.Duration) time.Time { return time.UnixMilli(now.Milliseconds()) }

// query evaluates an expression.
func (e *evaluation) query(ctx context.Context, expr string, now time.Duration) (promql.Vector, error) {
	q, err := e.engine.NewInstantQuery(ctx, e.series, nil, expr, at(now))
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

// rule evaluates a rule. It returns the alerts that fire: those whose expression has held for the
// rule's duration. The result of a recording rule becomes a series.
func (e *evaluation) rule(ctx context.Context, r rule, now time.Duration) (firing []map[string]string, err error) {
	vector, err := e.query(ctx, r.Expr, now)
	if err != nil {
		return nil, err
	}
	active := map[string]time.Duration{}
	for _, sample := range vector {
		if r.Record != "" {
			metric := labels.NewBuilder(sample.Metric).Set(model.MetricNameLabel, r.Record).Labels()
			e.series = e.series.record(metric, promql.FPoint{T: now.Milliseconds(), F: sample.F})
			continue
		}
		alert, err := e.alert(ctx, r, sample, now)
		if err != nil {
			return nil, err
		}
		id := sample.Metric.String()
		if _, twice := active[id]; twice {
			return nil, fmt.Errorf("two alerts have the labels %s", sample.Metric)
		}
		active[id] = now
		if since, known := e.since[r.Alert][id]; known {
			active[id] = since
		}
		if now-active[id] >= time.Duration(r.For) {
			firing = append(firing, alert)
		}
	}
	e.since[r.Alert] = active
	sort.Slice(firing, func(i, j int) bool { return fmt.Sprint(firing[i]) < fmt.Sprint(firing[j]) })
	return firing, nil
}

// alert is what Prometheus sends for a sample of a rule's result.
func (e *evaluation) alert(ctx context.Context, r rule, sample promql.Sample, now time.Duration) (map[string]string, error) {
	metric := labels.NewBuilder(sample.Metric).Del(model.MetricNameLabel).Labels().Map()
	data := template.AlertTemplateData(metric, nil, "", sample)
	query := func(ctx context.Context, expr string, _ time.Time) (promql.Vector, error) {
		return e.query(ctx, expr, now)
	}
	texts := map[string]string{}
	for name, text := range r.Annotations {
		const given = "{{$labels := .Labels}}{{$value := .Value}}"
		expanded, err := template.NewTemplateExpander(ctx, given+text, r.Alert, data, model.TimeFromUnixNano(at(now).UnixNano()), query, &url.URL{}, nil).Expand()
		if err != nil {
			return nil, err
		}
		texts[name] = expanded
	}
	for name, v := range r.Labels {
		metric[name] = v
	}
	return flat(r.Alert, metric, texts), nil
}

// series is a storage.Queryable in memory.
type series []promql.Series

// record appends a point to the series of metric.
func (s series) record(metric labels.Labels, p promql.FPoint) series {
	for i := range s {
		if labels.Equal(s[i].Metric, metric) {
			s[i].Floats = append(s[i].Floats, p)
			return s
		}
	}
	return append(s, promql.Series{Metric: metric, Floats: []promql.FPoint{p}})
}

// Querier implements [storage.Queryable]. The engine leaves out the samples outside of its range.
func (s series) Querier(_, _ int64) (storage.Querier, error) { return s, nil }

// Select implements [storage.Querier].
func (s series) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, one := range s {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.Metric.Get(m.Name)) }) {
			set.all = append(set.all, one)
		}
	}
	slices.SortFunc(set.all, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	return set
}

// LabelValues implements [storage.Querier]. Queries do not use it.
func (series) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames implements [storage.Querier]. Queries do not use it.
func (series) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// Close implements [storage.Querier].
func (series) Close() error { return nil }

// seriesSet implements [storage.SeriesSet].
type seriesSet struct {
	all []promql.Series
	at  int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *seriesSet) At() storage.Series                { return promql.NewStorageSeries(s.all[s.at]) }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }
