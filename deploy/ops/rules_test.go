// Package ops_test evaluates the Prometheus rules of this folder.
//
// The cases of alerts.yml are in alerts_test.yml, in the format of promtool. The tests read them.
// They evaluate the rules with Prometheus' own engine, so that they need no other program. "promtool
// test rules deploy/ops/alerts_test.yml" says the same.
package ops_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"mlsd/internal/promtest"
)

// S11: every rule is evaluated on sample series. Every alert fires when it should, and is silent
// when it should be. Labels and annotations are compared as they are sent.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, file := range ruleFiles(t) {
		for _, c := range file.cases.Tests {
			t.Run(file.name+" "+c.Name, func(t *testing.T) {
				t.Parallel()
				if err := c.check(t.Context(), file.rules); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// S11: the cases tell each rule from its neighbours. A rule with another threshold, another
// duration, without one of its conditions or of its matchers, or that adds up the nodes' values
// instead of taking the largest, fails a case.
func TestCasesNotice(t *testing.T) {
	t.Parallel()
	for _, file := range ruleFiles(t) {
		for i, rule := range file.rules {
			t.Run(rule.Name(), func(t *testing.T) {
				t.Parallel()
				cases := slices.DeleteFunc(slices.Clone(file.cases.Tests), func(c ruleCase) bool { return !c.concerns(rule) })
				others := neighbours(t, rule)
				if len(cases) == 0 || len(others) == 0 {
					t.Fatalf("the rule has %d cases and %d neighbours", len(cases), len(others))
				}
				for _, other := range others {
					rules := slices.Clone(file.rules)
					rules[i] = other
					if noticed := slices.ContainsFunc(cases,
						func(c ruleCase) bool { return c.check(t.Context(), rules) != nil }); !noticed {
						t.Errorf("no case tells the rule from %s, for %s", other.Expr, time.Duration(other.For))
					}
				}
			})
		}
	}
}

// S11: every alert has a case in which it fires, and one in which it is silent.
func TestEveryAlertHasCases(t *testing.T) {
	t.Parallel()
	n := 0
	for _, file := range ruleFiles(t) {
		for _, rule := range file.rules {
			if rule.Alert == "" {
				continue
			}
			n++
			var fires, silent bool
			for _, c := range file.cases.Tests {
				for _, a := range c.Alerts {
					if a.Name == rule.Alert {
						fires = fires || len(a.Expected) > 0
						silent = silent || len(a.Expected) == 0
					}
				}
			}
			if !fires || !silent {
				t.Errorf("%s: it fires in a case: %t, it is silent in a case: %t", rule.Alert, fires, silent)
			}
		}
	}
	if n < 20 {
		t.Fatalf("there are only %d alerts", n)
	}
}

// ruleFile is a file of rules, with its cases.
type ruleFile struct {
	name  string
	rules []promtest.Rule
	cases caseFile
}

// caseFile is a file of cases, in the format of promtool.
type caseFile struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Fuzzy              bool           `yaml:"fuzzy_compare"` // of values; here always, to six digits
	Tests              []ruleCase     `yaml:"tests"`
}

// ruleCase is a set of series, and what the rules make of them.
type ruleCase struct {
	Name     string         `yaml:"name"`
	Interval model.Duration `yaml:"interval"` // between the samples
	Series   []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []struct {
		At       model.Duration `yaml:"eval_time"`
		Name     string         `yaml:"alertname"`
		Expected []struct {
			Labels      map[string]string `yaml:"exp_labels"`
			Annotations map[string]string `yaml:"exp_annotations"`
		} `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
	Samples []struct {
		Expr     string         `yaml:"expr"`
		At       model.Duration `yaml:"eval_time"`
		Expected []struct {
			Labels string  `yaml:"labels"`
			Value  float64 `yaml:"value"`
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
}

// ruleFiles reads the files of rules and their cases.
func ruleFiles(t *testing.T) (files []ruleFile) {
	t.Helper()
	paths, err := filepath.Glob("*.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		base, ok := strings.CutSuffix(path, ".yml")
		if strings.HasSuffix(base, "_test") || !ok {
			continue
		}
		file := ruleFile{name: path}
		if file.rules, err = promtest.ReadRules(path); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(base + "_test.yml")
		if err != nil {
			t.Fatalf("the rules of %s have no cases: %v", path, err)
		}
		defer func() { _ = f.Close() }()
		d := yaml.NewDecoder(f)
		d.KnownFields(true)
		if err := d.Decode(&file.cases); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{path}, file.cases.RuleFiles); diff != "" ||
			file.cases.EvaluationInterval != model.Duration(time.Minute) {
			t.Errorf("%s_test.yml: evaluation_interval must be 1m, and rule_files (-want +got):\n%s", base, diff)
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		t.Fatal("there are no rules")
	}
	return files
}

// concerns reports whether the case is about r.
func (c ruleCase) concerns(r promtest.Rule) bool {
	for _, a := range c.Alerts {
		if a.Name == r.Alert {
			return true
		}
	}
	for _, s := range c.Samples {
		if r.Record != "" && strings.Contains(s.Expr, r.Record) {
			return true
		}
	}
	return false
}

// check evaluates the rules that the case concerns once a minute, as Prometheus does, and returns
// an error if they do not do what the case expects.
func (c ruleCase) check(ctx context.Context, rules []promtest.Rule) error {
	e, err := newEvaluation(c)
	if err != nil {
		return err
	}
	rules = slices.DeleteFunc(slices.Clone(rules), func(r promtest.Rule) bool { return !c.concerns(r) })
	var end time.Duration
	for _, a := range c.Alerts {
		if !slices.ContainsFunc(rules, func(r promtest.Rule) bool { return r.Alert == a.Name }) {
			return fmt.Errorf("there is no alert %s", a.Name)
		}
		end = max(end, time.Duration(a.At))
	}
	for _, s := range c.Samples {
		end = max(end, time.Duration(s.At))
	}
	for now := time.Duration(0); now <= end; now += time.Minute {
		firing := map[string][]map[string]string{}
		for _, r := range rules {
			active, err := e.Rule(ctx, r, at(now))
			if err != nil {
				return fmt.Errorf("at %s: %w", now, err)
			}
			firing[r.Alert] = active
		}
		for _, a := range c.Alerts {
			if time.Duration(a.At) != now {
				continue
			}
			var want []map[string]string
			for _, x := range a.Expected {
				want = append(want, promtest.Alert(a.Name, x.Labels, x.Annotations))
			}
			if diff := cmp.Diff(want, firing[a.Name]); diff != "" {
				return fmt.Errorf("%s at %s (-want +fires):\n%s", a.Name, now, diff)
			}
		}
		for _, s := range c.Samples {
			if time.Duration(s.At) != now {
				continue
			}
			want, got := map[string]string{}, map[string]string{}
			for _, x := range s.Expected {
				metric, err := parser.ParseMetric(x.Labels)
				if err != nil {
					return err
				}
				want[metric.String()] = fmt.Sprintf("%.6g", x.Value)
			}
			vector, err := e.Series.Query(ctx, s.Expr, at(now))
			if err != nil {
				return err
			}
			for _, sample := range vector {
				got[sample.Metric.String()] = fmt.Sprintf("%.6g", sample.F)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("%s at %s (-want +got):\n%s", s.Expr, now, diff)
			}
		}
	}
	return nil
}

// neighbours are rules that differ from r in one respect.
func neighbours(t *testing.T, r promtest.Rule) (all []promtest.Rule) {
	t.Helper()
	for i := 0; ; i++ { // the i-th change
		expr, err := parser.ParseExpr(r.Expr)
		if err != nil {
			t.Fatal(err)
		}
		left := i
		change := func() bool { left--; return left == -1 }
		other := r
		other.Expr = changed(expr, change).String()
		if left >= 0 {
			break
		}
		all = append(all, other)
	}
	if r.Alert == "" {
		return all
	}
	for _, d := range []model.Duration{0, 2 * r.For} {
		if other := r; d != r.For {
			other.For = d
			all = append(all, other)
		}
	}
	return all
}

// changed returns e with the change for which do returns true. It asks do at every place.
func changed(e parser.Expr, do func() bool) parser.Expr {
	switch e := e.(type) {
	case *parser.BinaryExpr:
		if e.Op == parser.LAND || e.Op == parser.LOR || e.Op == parser.LUNLESS {
			if do() {
				return e.LHS
			}
			if e.Op == parser.LAND && do() {
				return e.RHS
			}
		}
		number, ok := e.RHS.(*parser.NumberLiteral)
		if ok && e.Op.IsComparisonOperator() {
			for _, v := range others(number.Val) {
				if do() {
					number.Val = v
				}
			}
			if e.Op == parser.EQLC && do() {
				e.Op = parser.NEQ
			}
			if sum, ok := e.LHS.(*parser.AggregateExpr); ok && number.Val == 0 {
				// The sum of what is never negative is 0 if and only if the largest is.
				sum.Expr = changed(sum.Expr, do)
				return e
			}
		}
		e.LHS, e.RHS = changed(e.LHS, do), changed(e.RHS, do)
	case *parser.AggregateExpr:
		if swap := map[parser.ItemType]parser.ItemType{parser.MAX: parser.SUM, parser.SUM: parser.MAX,
			parser.MIN: parser.MAX}[e.Op]; swap != 0 && do() {
			e.Op = swap
		}
		e.Expr = changed(e.Expr, do)
	case *parser.ParenExpr:
		e.Expr = changed(e.Expr, do)
	case *parser.Call:
		for i := range e.Args {
			e.Args[i] = changed(e.Args[i], do)
		}
	case *parser.MatrixSelector:
		e.VectorSelector = changed(e.VectorSelector, do)
	case *parser.SubqueryExpr:
		e.Expr = changed(e.Expr, do)
	case *parser.VectorSelector:
		for i, m := range e.LabelMatchers {
			if m.Name != model.MetricNameLabel && do() {
				e.LabelMatchers = slices.Delete(slices.Clone(e.LabelMatchers), i, i+1)
				break
			}
		}
	}
	return e
}

// others are thresholds that a case should tell from v.
func others(v float64) []float64 {
	if v == 0 {
		return []float64{2, math.Inf(-1)}
	}
	return []float64{v / 2, v * 2}
}
