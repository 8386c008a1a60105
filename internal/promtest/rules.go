package promtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"sort"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/template"
)

// Rule is an alert, or a recorded series.
type Rule struct{ rulefmt.Rule }

// Name is the name of the alert, or of the recorded series.
func (r Rule) Name() string { return r.Alert + r.Record }

// ReadRules reads a file of rules.
func ReadRules(path string) (all []Rule, err error) {
	groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			all = append(all, Rule{r})
		}
	}
	return all, nil
}

// Evaluation evaluates rules over series. It remembers since when alerts are active. It is for one
// goroutine.
type Evaluation struct {
	Series *Storage
	since  map[string]map[string]time.Time // by the alert's name, and by its labels
}

// NewEvaluation returns an evaluation over series.
func NewEvaluation(series *Storage) *Evaluation {
	return &Evaluation{Series: series, since: map[string]map[string]time.Time{}}
}

// Rule evaluates a rule. It returns the alerts that fire, because their expression has held for the
// rule's duration. The result of a recording rule becomes a series.
func (e *Evaluation) Rule(ctx context.Context, r Rule, now time.Time) (firing []map[string]string, err error) {
	vector, err := e.Series.Query(ctx, r.Expr, now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Name(), err)
	}
	if r.Record != "" {
		e.Series.Record(r.Record, vector, now)
		return nil, nil
	}
	active := map[string]time.Time{}
	for _, sample := range vector {
		alert, err := e.alert(ctx, r, sample, now)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name(), err)
		}
		id := sample.Metric.String()
		if _, twice := active[id]; twice {
			return nil, fmt.Errorf("%s: two alerts have the labels %s", r.Name(), sample.Metric)
		}
		active[id] = now
		if since, known := e.since[r.Alert][id]; known {
			active[id] = since
		}
		if now.Sub(active[id]) >= time.Duration(r.For) {
			firing = append(firing, alert)
		}
	}
	e.since[r.Alert] = active
	sort.Slice(firing, func(i, j int) bool { return fmt.Sprint(firing[i]) < fmt.Sprint(firing[j]) })
	return firing, nil
}

// alert is what Prometheus sends for a sample of a rule's result.
func (e *Evaluation) alert(ctx context.Context, r Rule, sample promql.Sample, now time.Time) (map[string]string,
	error) {
	metric := labels.NewBuilder(sample.Metric).Del(model.MetricNameLabel).Labels().Map()
	data := template.AlertTemplateData(metric, nil, "", sample)
	query := func(ctx context.Context, expr string, _ time.Time) (promql.Vector, error) {
		return e.Series.Query(ctx, expr, now)
	}
	texts := map[string]string{}
	for name, text := range r.Annotations {
		const given = "{{$labels := .Labels}}{{$value := .Value}}"
		expanded, err := template.NewTemplateExpander(ctx, given+text, r.Alert, data,
			model.TimeFromUnixNano(now.UnixNano()), query, &url.URL{}, nil).Expand()
		if err != nil {
			return nil, err
		}
		texts[name] = expanded
	}
	for name, v := range r.Labels {
		metric[name] = v
	}
	return Alert(r.Alert, metric, texts), nil
}

// Alert is an alert: its labels, and its annotations with a colon before their names.
func Alert(name string, labels, annotations map[string]string) map[string]string {
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	all["alertname"] = name
	for n, text := range annotations {
		all[":"+n] = text
	}
	return all
}
