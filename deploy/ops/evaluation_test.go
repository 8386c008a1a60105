package ops_test

import (
	"fmt"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"mlsd/internal/promtest"
)

// newEvaluation returns an evaluation over the series of a case.
func newEvaluation(c ruleCase) (*promtest.Evaluation, error) {
	e := promtest.NewEvaluation(promtest.New())
	for _, s := range c.Series {
		metric, values, err := parser.ParseSeriesDesc(s.Series + " " + s.Values)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Series, err)
		}
		for i, v := range values {
			if !v.Omitted {
				e.Series.Append(metric, at(time.Duration(i)*time.Duration(c.Interval)), v.Value)
			}
		}
	}
	return e, nil
}

// at is a time of the case.
func at(now time.Duration) time.Time { return time.UnixMilli(now.Milliseconds()) }
