package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// group is every turn of one variant under one load.
type group struct {
	variant string
	load    Load
	runs    []*Run
}

// groups returns them in the order in which they first ran.
func (r *Report) groups() (found []*group) {
	for i := range r.Runs {
		run := &r.Runs[i]
		at := slices.IndexFunc(found, func(g *group) bool { return g.variant == run.Variant && g.load == run.Load })
		if at < 0 {
			at = len(found)
			found = append(found, &group{variant: run.Variant, load: run.Load})
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
func (r *Run) pick(name string) (picked []*Operation) {
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
func (r *Run) latency(name string) *Latency {
	merged := NewLatency()
	for _, op := range r.pick(name) {
		if op.Latency != nil && op.Latency.Histogram != nil {
			merged.Merge(op.Latency.Histogram)
		}
	}
	return merged
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

func (g *group) latency(name string) *Latency {
	merged := NewLatency()
	for _, run := range g.runs {
		merged.Merge(run.latency(name).Histogram)
	}
	return merged
}

// failures lists the failures by name, the most frequent first. It is empty without failures.
func (g *group) failures(name string) string {
	count := map[string]int64{}
	for _, run := range g.runs {
		for _, op := range run.pick(name) {
			for failure, n := range op.Failed {
				count[failure] += n
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		if count[a] != count[b] {
			return int(max(-1, min(1, count[b]-count[a])))
		}
		return strings.Compare(a, b)
	})
	var said []string
	for _, failure := range names {
		if count[failure] > 0 {
			said = append(said, failure+" "+thousands(count[failure]))
		}
	}
	return strings.Join(said, ", ")
}

// cost is processor time of a request, in microseconds.
type cost struct{ server, database, load float64 }

func (c cost) total() float64 { return c.server + c.database + c.load }

// costOf divides all processor time of some runs by their successful requests. Failures make these
// dearer.
func costOf(runs ...*Run) cost {
	var spent Spent
	var done int64
	for _, run := range runs {
		spent.Server += run.Spent.Server
		spent.Database += run.Spent.Database
		spent.Load += run.Spent.Load
		done += run.done(all)
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

// panel is a set of groups that can be compared: their loads differ only in what a variant decides
// itself.
type panel struct {
	load   string // what sets it apart from the other panels; empty if there is but one
	groups []*group
}

// panels divides the groups. If each variant has one load only, all are compared, however they
// differ.
func panels(groups []*group) (found []panel) {
	loads := map[string]int{}
	for _, g := range groups {
		loads[g.variant]++
	}
	if len(loads) == len(groups) {
		if len(groups) == 0 {
			return nil
		}
		return []panel{{groups: groups}}
	}
	var keys []Load
	for _, g := range groups {
		key := g.load
		key.Servers, key.Members, key.Faults = 0, 0, false // a variant may decide these; ceiling has no servers
		at := slices.Index(keys, key)
		if at < 0 {
			at = len(keys)
			keys, found = append(keys, key), append(found, panel{})
		}
		found[at].groups = append(found[at].groups, g)
	}
	vary := varying(keys)
	for i := range found {
		found[i].load = keys[i].say(vary)
	}
	return found
}

// ratio is one variant divided by another. Each figure is the median of the turns' own ratios.
type ratio struct {
	over, under          string // variants
	load                 string // of the panel
	turns                int
	rate, least, most    float64 // least and most of a turn
	p50, p99, processors float64
}

// pairs are the usual comparisons. A variant in none of them is divided by the first of its panel.
var pairs = [][2]string{{"batched", "alone"}, {"batched", "ceiling"}, {"alone", "ceiling"}, {"storm", "calm"}}

// Variant names a variant of one of several servers. Variants of one name are compared server by
// server.
func Variant(name, server string) string {
	if server == "" {
		return name
	}
	return name + ofServer + server
}

const ofServer = ", "

func (r *Report) ratios() (found []ratio) {
	for _, p := range panels(r.groups()) {
		var variants []string
		for _, g := range p.groups {
			if !slices.Contains(variants, g.variant) {
				variants = append(variants, g.variant)
			}
		}
		for _, pair := range comparable(variants) {
			for _, over := range p.groups {
				if over.variant != pair[0] {
					continue
				}
				if ratio := compare(over, p.counterpart(over, pair[1])); ratio.turns > 0 {
					ratio.load = p.load
					found = append(found, ratio)
				}
			}
		}
	}
	return found
}

// comparable returns the pairs whose variants exist, and a pair for each other variant.
func comparable(variants []string) (found [][2]string) {
	known := map[string]bool{}
	for _, pair := range pairs {
		if slices.Contains(variants, pair[0]) && slices.Contains(variants, pair[1]) {
			found = append(found, pair)
			known[pair[0]], known[pair[1]] = true, true
		}
	}
	for i, v := range variants[1:] {
		if known[v] {
			continue
		}
		under := variants[0]
		if name, _, ok := strings.Cut(v, ofServer); ok {
			same := slices.IndexFunc(variants, func(w string) bool { return strings.HasPrefix(w, name+ofServer) })
			if same > i {
				continue // v is the first of its name
			}
			under = variants[same]
		}
		found = append(found, [2]string{v, under})
	}
	return found
}

// counterpart is the group of another variant under the same load, or else the
// first one.
func (p panel) counterpart(g *group, variant string) (found *group) {
	for _, other := range p.groups {
		if other.variant == variant && (found == nil || other.load == g.load) {
			found = other
		}
	}
	return found
}

// shared returns the operation to compare two runs by: all, or the one that both a storm and a calm
// have.
func shared(a, b *Run) string {
	for name := range b.Operations {
		if len(b.Operations) == 1 && len(a.Operations) > 1 && a.Operations[name] != nil {
			return name
		}
	}
	return all
}

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
		name := shared(a, b)
		add(&rates, a.rate(name), b.rate(name))
		la, lb := a.latency(name), b.latency(name)
		add(&p50s, float64(la.ValueAtQuantile(50)), float64(lb.ValueAtQuantile(50)))
		add(&p99s, float64(la.ValueAtQuantile(99)), float64(lb.ValueAtQuantile(99)))
		add(&processors, costOf(a).total(), costOf(b).total())
	}
	found := ratio{over: over.variant, under: under.variant, turns: len(rates), rate: median(rates),
		p50: median(p50s), p99: median(p99s), processors: median(processors)}
	if len(rates) > 0 {
		found.least, found.most = slices.Min(rates), slices.Max(rates)
	}
	return found
}

// terms describes a load, one term per field. A term that does not apply is empty.
func (l Load) terms() [7]string {
	var terms [7]string
	if l.InFlight > 0 {
		terms[0] = thousands(int64(l.InFlight)) + " in flight"
	}
	if l.Rate > 0 {
		terms[1] = significant(l.Rate) + "/s offered"
	}
	if l.Servers > 0 {
		terms[2] = plural(l.Servers, "server")
	}
	if l.Convos > 0 {
		terms[3] = plural(l.Convos, "convo")
	}
	if l.Members > 0 {
		terms[4] = plural(l.Members, "member") + " each"
	}
	if l.BodyBytes > 0 {
		terms[5] = bytesOf(uint64(l.BodyBytes)) + " bodies"
	}
	if l.Faults {
		terms[6] = "with faults"
	}
	return terms
}

// varying reports which terms differ between loads. A missing term is no difference, except for
// faults.
func varying(loads []Load) (vary [7]bool) {
	var first [7]string
	for _, l := range loads {
		for i, term := range l.terms() {
			if first[i] == "" {
				first[i] = term
			}
			vary[i] = vary[i] || term != "" && term != first[i]
		}
		vary[6] = vary[6] || l.Faults != loads[0].Faults
	}
	return vary
}

// say joins the chosen terms.
func (l Load) say(chosen [7]bool) string {
	terms := l.terms()
	for i := range terms {
		if !chosen[i] {
			terms[i] = ""
		}
	}
	return joined(terms[:]...)
}

// loads returns what all groups have in common, and what is special about each.
func loads(groups []*group) (common string, apart []string) {
	all := make([]Load, len(groups))
	for i, g := range groups {
		all[i] = g.load
	}
	vary := varying(all)
	var shared [7]string
	for _, l := range all {
		apart = append(apart, l.say(vary))
		for i, term := range l.terms() {
			if !vary[i] && shared[i] == "" {
				shared[i] = term
			}
		}
	}
	return joined(shared[:]...), apart
}

// loadText describes what all runs have in common: operations, load, number of turns and their
// length.
func (r *Report) loadText() string {
	if len(r.Runs) == 0 {
		return "no run"
	}
	groups := r.groups()
	common, _ := loads(groups)
	turns := 0
	var took []float64
	for _, run := range r.Runs {
		turns = max(turns, run.Turn+1)
		took = append(took, run.Took.Seconds())
	}
	each := significant(math.Round(10*median(took)) / 10)
	return joined(strings.Join(operations(groups...), " and "), common, fmt.Sprintf("%s of %s s", plural(turns, "turn"), each))
}
