package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"mlsd/clientsim/load"
)

// group is every turn of one variant.
type group struct {
	variant string
	runs    []*Run
}

// groups returns them in the order in which they first ran.
func (r *Report) groups() (found []*group) {
	for i := range r.Runs {
		run := &r.Runs[i]
		at := slices.IndexFunc(found, func(g *group) bool { return g.variant == run.Variant })
		if at < 0 {
			at = len(found)
			found = append(found, &group{variant: run.Variant})
		}
		found[at].runs = append(found[at].runs, run)
	}
	return found
}

// all is the name of no operation: it stands for all of them together.
const all = ""

// operations are the names of all operations of some groups, sorted.
func operations(groups ...*group) []string {
	names := map[string]bool{}
	for _, g := range groups {
		for _, run := range g.runs {
			for name := range run.Operations {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// pick returns the named operation of a run, or all of them.
func (r *Run) pick(name string) (picked []*load.Operation) {
	for _, key := range slices.Sorted(maps.Keys(r.Operations)) {
		if op := r.Operations[key]; op != nil && (name == all || name == key) {
			picked = append(picked, op)
		}
	}
	return picked
}

func (r *Run) done(name string) (n int64) {
	for _, op := range r.pick(name) {
		n += op.Done
	}
	return n
}

// rate is requests done per second.
func (r *Run) rate(name string) float64 {
	return float64(r.done(name)) / r.Took.Seconds()
}

// latency merges the latencies of an operation, in microseconds.
func (r *Run) latency(name string) *load.Latency {
	merged := load.NewLatency()
	for _, op := range r.pick(name) {
		if op.Latency != nil && op.Latency.Histogram != nil {
			merged.Merge(op.Latency.Histogram)
		}
	}
	return merged
}

// Text is the run in a line.
func (r *Run) Text() string {
	latency := r.latency(all)
	return fmt.Sprintf("%s/s for %s, p50 %s, p99 %s", significant(r.rate(all)), r.Took.Round(time.Millisecond),
		quantile(latency, 50), quantile(latency, 99))
}

// rates returns the rates of the turns that have the operation.
func (g *group) rates(name string) (rates []float64) {
	for _, run := range g.runs {
		if len(run.pick(name)) > 0 && run.Took > 0 {
			rates = append(rates, run.rate(name))
		}
	}
	return rates
}

func (g *group) latency(name string) *load.Latency {
	merged := load.NewLatency()
	for _, run := range g.runs {
		merged.Merge(run.latency(name).Histogram)
	}
	return merged
}

// failures lists the failures by name. It is empty without failures.
func (g *group) failures(name string) string {
	count := map[string]int64{}
	for _, run := range g.runs {
		for _, op := range run.pick(name) {
			for failure, n := range op.Failed {
				count[failure] += n
			}
		}
	}
	var texts []string
	for _, failure := range slices.Sorted(maps.Keys(count)) {
		texts = append(texts, failure+" "+thousands(count[failure]))
	}
	return strings.Join(texts, ", ")
}

// cost is processor time of a request, in microseconds.
type cost struct{ server, database, load float64 }

func (c cost) total() float64 { return c.server + c.database + c.load }

// costOf divides all processor time of some runs by their successful requests, or by those that
// Run.Per names. So failures make these more expensive.
func costOf(runs ...*Run) cost {
	var spent Spent
	var done int64
	for _, run := range runs {
		spent.Server += run.Spent.Server
		spent.Database += run.Spent.Database
		spent.Load += run.Spent.Load
		done += run.done(run.Per)
	}
	per := func(d time.Duration) float64 { return micros(d) / float64(done) }
	return cost{per(spent.Server), per(spent.Database), per(spent.Load)}
}

// median returns NaN for no values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// ratio is one variant divided by the variant that it is measured against. Each figure is the
// median of the turns' own ratios.
type ratio struct {
	over, under          string // variants
	turns                int
	rate, least, most    float64 // least and most of a turn
	p50, p99, processors float64
}

func (r *Report) ratios() (found []ratio) {
	groups := r.groups()
	for _, over := range groups {
		at := slices.IndexFunc(groups, func(g *group) bool { return g != over && g.variant == over.runs[0].Against })
		if at < 0 {
			continue
		}
		if one := compare(over, groups[at]); one.turns > 0 {
			found = append(found, one)
		}
	}
	return found
}

// compared is the operation by which runs are compared. A storm has others.
const compared = "sendMessage"

func compare(over, under *group) ratio {
	var rates, p50s, p99s, processors []float64
	add := func(to *[]float64, a, b float64) {
		if a > 0 && b > 0 && !math.IsInf(a/b, 0) {
			*to = append(*to, a/b)
		}
	}
	for _, a := range over.runs {
		i := slices.IndexFunc(under.runs, func(b *Run) bool { return b.Turn == a.Turn })
		if i < 0 {
			continue
		}
		b := under.runs[i]
		add(&rates, a.rate(compared), b.rate(compared))
		la, lb := a.latency(compared), b.latency(compared)
		add(&p50s, float64(la.ValueAtQuantile(50)), float64(lb.ValueAtQuantile(50)))
		add(&p99s, float64(la.ValueAtQuantile(99)), float64(lb.ValueAtQuantile(99)))
		add(&processors, costOf(a).total(), costOf(b).total())
	}
	found := ratio{
		over: over.variant, under: under.variant, turns: len(rates), rate: median(rates),
		p50: median(p50s), p99: median(p99s), processors: median(processors),
	}
	if len(rates) > 0 {
		found.least, found.most = slices.Min(rates), slices.Max(rates)
	}
	return found
}

// text describes a load. What does not apply is left out.
func (l Load) text() string {
	var terms []string
	term := func(n int, format string, text ...any) {
		if n > 0 {
			terms = append(terms, fmt.Sprintf(format, text...))
		}
	}
	term(l.InFlight, "%s in flight", thousands(int64(l.InFlight)))
	if l.Rate > 0 {
		terms = append(terms, significant(l.Rate)+"/s offered")
	}
	term(l.Servers, "%s", plural(l.Servers, "server"))
	term(l.Convos, "%s", plural(l.Convos, "convo"))
	term(l.Members, "%s each", plural(l.Members, "member"))
	term(l.BodyBytes, "%s bodies", bytesOf(uint64(l.BodyBytes)))
	if l.Faults {
		terms = append(terms, "with faults")
	}
	return strings.Join(terms, ", ")
}

// loadText describes operations, the load of the first run, number of turns and their length.
func (r *Report) loadText() string {
	if len(r.Runs) == 0 {
		return "no run"
	}
	turns := 0
	var took []float64
	for _, run := range r.Runs {
		turns = max(turns, run.Turn+1)
		took = append(took, run.Took.Seconds())
	}
	each := significant(math.Round(10*median(took)) / 10)
	return joined(strings.Join(operations(r.groups()...), " and "), r.Runs[0].Load.text(),
		fmt.Sprintf("%s of %s s", plural(turns, "turn"), each))
}
