package ops_test

import (
	"context"
	"fmt"
	"net/url"
	"sort"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/template"

	"mlsd/internal/promtest"
)

// evaluation evaluates rules over the series of one case, from the case's begin on.
type evaluation struct {
	series *promtest.Storage
	since  map[string]map[string]time.Duration // when an alert became active: by its name, and by its labels
}

func newEvaluation(c ruleCase) (*evaluation, error) {
	e := &evaluation{series: promtest.New(), since: map[string]map[string]time.Duration{}}
	for _, s := range c.Series {
		metric, values, err := parser.ParseSeriesDesc(s.Series + " " + s.Values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Series, err)
		}
		for i, v := range values {
			if !v.Omitted {
				e.series.Append(metric, at(time.Duration(i)*time.Duration(c.Interval)), v.Value)
			}
		}
	}
	return e, nil
}

// at is a time of the case.
func at(now time.Duration) time.Time { return time.UnixMilli(now.Milliseconds()) }

// query evaluates an expression.
func (e *evaluation) query(ctx context.Context, expr string, now time.Duration) (promql.Vector, error) {
	return e.series.Query(ctx, expr, at(now))
}

// rule evaluates a rule. It returns the alerts that fire: those whose expression has held for the
// rule's duration. The result of a recording rule becomes a series.
func (e *evaluation) rule(ctx context.Context, r rule, now time.Duration) (firing []map[string]string, err error) {
	vector, err := e.query(ctx, r.Expr, now)
	if err != nil {
		return nil, err
	}
	if r.Record != "" {
		e.series.Record(r.Record, vector, at(now))
		return nil, nil
	}
	active := map[string]time.Duration{}
	for _, sample := range vector {
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
func (e *evaluation) alert(ctx context.Context, r rule, sample promql.Sample, now time.Duration) (map[string]string,
	error) {
	metric := labels.NewBuilder(sample.Metric).Del(model.MetricNameLabel).Labels().Map()
	data := template.AlertTemplateData(metric, nil, "", sample)
	query := func(ctx context.Context, expr string, _ time.Time) (promql.Vector, error) {
		return e.query(ctx, expr, now)
	}
	texts := map[string]string{}
	for name, text := range r.Annotations {
		const given = "{{$labels := .Labels}}{{$value := .Value}}"
		expanded, err := template.NewTemplateExpander(ctx, given+text, r.Alert, data,
			model.TimeFromUnixNano(at(now).UnixNano()), query, &url.URL{}, nil).Expand()
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
