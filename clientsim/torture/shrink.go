package torture

import (
	"context"
	"fmt"
	"time"
)

// shrink looks for a shorter run with fewer faults that fails as well, until its time is over. A
// smaller run that does not fail may do so another time, because only the plan is repeated. It
// returns nil if no smaller run failed.
func (c *Config) shrink(ctx context.Context, failed *Report) (*Report, error) {
	deadline := time.Now().Add(c.Shrink)
	best := failed
	for again := true; again; {
		again = false
		for _, candidate := range smaller(best.For, best.Plan) {
			if time.Until(deadline) < candidate.length {
				continue
			}
			c.Progress(fmt.Sprintf("shrinking: %s with %d faults", candidate.length, len(candidate.plan)))
			report := c.newReport(candidate.length, candidate.plan)
			if err := c.play(ctx, report); err != nil {
				return nil, err
			}
			if len(report.Violations) > 0 {
				best, again = report, true
				break
			}
		}
	}
	if best == failed {
		return nil, nil
	}
	return best, nil
}

// candidate is a smaller run to try.
type candidate struct {
	length time.Duration
	plan   []Step
}

// shortest is the shortest run that shrink tries.
const shortest = time.Second

// smaller returns the runs to try, the smallest first: half the time, then the plan without the
// faults of processes or of connections, then without each of its quarters.
func smaller(length time.Duration, plan []Step) (all []candidate) {
	if half := length / 2; half >= shortest {
		all = append(all, candidate{half, filter(plan, func(_ int, s Step) bool { return s.At < half })})
	}
	parts := [][]Step{
		filter(plan, func(_ int, s Step) bool { return s.Kind == Wire }),
		filter(plan, func(_ int, s Step) bool { return s.Kind != Wire }),
	}
	for quarter := range 4 {
		parts = append(parts, filter(plan, func(i int, _ Step) bool { return i*4/len(plan) != quarter }))
	}
	for _, part := range parts {
		if len(part) < len(plan) {
			all = append(all, candidate{length, part})
		}
	}
	return all
}

// filter returns the steps of a plan that keep keeps.
func filter(plan []Step, keep func(i int, s Step) bool) (kept []Step) {
	for i, s := range plan {
		if keep(i, s) {
			kept = append(kept, s)
		}
	}
	return kept
}
