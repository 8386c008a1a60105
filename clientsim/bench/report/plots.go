package report

import (
	"fmt"
	"html/template"
	"math"
	"unicode/utf8"
)

// plot is a picture and what its colours mean.
type plot struct {
	Title, Note string
	Keys        []key
	SVG         template.HTML
}

// key is an entry of a legend: the class that has the colour, and its meaning.
type key struct{ Class, Text string }

// series is how many colours the page has; further variants begin again with the first.
const series = 8

// seriesOf numbers the variants in the order in which they first ran: a variant has the same colour
// in every plot.
func seriesOf(groups []*group) map[string]int {
	found := map[string]int{}
	for _, g := range groups {
		if _, ok := found[g.variant]; !ok {
			found[g.variant] = len(found) % series
		}
	}
	return found
}

// look is how a group is drawn: its variant's colour, dashed if the variant has several loads in
// the plot.
type look struct{ class, label string }

func looks(groups []*group, variants map[string]int) (found []look) {
	times := map[string]int{}
	for _, g := range groups {
		times[g.variant]++
	}
	_, apart := loads(groups)
	seen := map[string]int{}
	for i, g := range groups {
		l := look{fmt.Sprintf("s%d", variants[g.variant]), g.variant}
		if times[g.variant] > 1 {
			l.class += fmt.Sprintf(" d%d", min(seen[g.variant], 3))
			l.label = joined(g.variant, apart[i])
		}
		seen[g.variant]++
		found = append(found, l)
	}
	return found
}

func legend(looks []look) (keys []key) {
	for _, l := range looks {
		keys = append(keys, key{l.class, l.label})
	}
	return keys
}

// plots returns all pictures of the report.
func (r *Report) plots() []plot {
	groups := r.groups()
	if len(groups) == 0 {
		return nil
	}
	variants := seriesOf(groups)
	var found []plot
	for _, p := range panels(groups) {
		found = append(found, p.ratePlot(variants))
		found = append(found, p.percentilePlots(variants)...)
		found = append(found, r.timePlot(p, variants))
	}
	return append(found, costPlot(groups))
}

// about appends what sets a plot apart from others of its kind.
func about(title string, of ...string) string {
	if rest := joined(of...); rest != "" {
		return title + ": " + rest
	}
	return title
}

// strips is a frame with one line of plot for each group, labelled at its left.
func strips(groups []*group, height float64) (d *drawing, f frame, middle func(i int) float64) {
	_, apart := loads(groups)
	widest := 0
	labels := make([]string, len(groups))
	for i, g := range groups {
		labels[i] = joined(g.variant, apart[i])
		widest = max(widest, utf8.RuneCountInString(labels[i]))
	}
	const letter = 7.0
	f = frame{left: min(420, 24+letter*float64(widest)), right: plotWidth - 110, top: 6, bottom: 6 + height*float64(len(groups))}
	d = draw(f.bottom + 46)
	middle = func(i int) float64 { return f.top + height*(float64(i)+0.5) }
	for i, label := range labels {
		d.text("label", "end", f.left-12, middle(i)+4, cut(label, int((f.left-24)/letter)))
	}
	return d, f, middle
}

// ratePlot has a dot for each turn and a bar at their median.
func (p panel) ratePlot(variants map[string]int) plot {
	greatest := 0.0
	for _, g := range p.groups {
		for _, rate := range g.rates(all) {
			greatest = max(greatest, rate)
		}
	}
	d, f, middle := strips(p.groups, 36)
	x, ticks := fromZero(greatest, f.left, f.right, significant)
	d.vertical(f, x, ticks, "requests/s")
	for i, g := range p.groups {
		y := middle(i)
		class := fmt.Sprintf("s%d", variants[g.variant])
		rates := g.rates(all)
		if len(rates) == 0 {
			continue
		}
		m := median(rates)
		d.rect("bar "+class, f.left, y-9, x.at(m)-f.left, 18, "")
		for _, run := range g.runs {
			if run.Took > 0 {
				d.dot("dot "+class, x.at(run.rate(all)), y, 4, fmt.Sprintf("turn %d: %s/s", run.Turn+1, significant(run.rate(all))))
			}
		}
		d.line("median "+class, x.at(m), y-13, x.at(m), y+13)
		d.text("figure", "start", f.right+12, y+4, significant(m)+"/s")
	}
	return plot{Title: about("Requests done per second", p.load), Note: "A dot for each turn; the bar, and the figure, is their median.",
		SVG: d.done("requests per second, by variant")}
}

// percentilePlots draws the latency of all operations together, or of each one if a variant has
// several.
func (p panel) percentilePlots(variants map[string]int) (found []plot) {
	names := []string{all}
	for _, g := range p.groups {
		if len(operations(g)) > 1 {
			names = operations(p.groups...)
			break
		}
	}
	for _, name := range names {
		found = append(found, p.percentilePlot(name, variants))
	}
	return found
}

// percentilePlot stretches the tail like HdrHistogram: each step to the right leaves a tenth of the
// requests.
func (p panel) percentilePlot(name string, variants map[string]int) plot {
	const steps = 40.0 // of a curve, for each tenfold
	curves := make([][]point, len(p.groups))
	tail, least, greatest := 2.0, math.Inf(1), 0.0
	for i, g := range p.groups {
		latency := g.latency(name)
		n := latency.TotalCount()
		if n == 0 {
			continue
		}
		end := math.Log10(float64(n))
		tail = max(tail, end)
		for at := 0.0; at < end; at += 1 / steps {
			curves[i] = append(curves[i], point{at, float64(latency.ValueAtQuantile(100 * (1 - math.Pow(10, -at))))})
		}
		curves[i] = append(curves[i], point{end, float64(latency.ValueAtQuantile(100))})
		least, greatest = min(least, max(1, curves[i][0].y)), max(greatest, curves[i][len(curves[i])-1].y)
	}

	f := frame{left: 84, right: plotWidth - 20, top: 10, bottom: 320}
	d := draw(f.bottom + 46)
	y, ticks := logarithmic(least, greatest, f.bottom, f.top, latencyText)
	d.horizontal(f, y, ticks, "latency")
	x := scale{greatest: tail, low: f.left, high: f.right}
	d.vertical(f, x, percentileTicks(tail), "percentile of requests")
	looks := looks(p.groups, variants)
	for i, curve := range curves {
		for j, at := range curve {
			curve[j] = point{x.at(at.x), y.at(max(1, at.y))}
		}
		d.path("curve "+looks[i].class, curve, looks[i].label)
	}
	for i, g := range p.groups {
		latency := g.latency(name)
		for _, q := range quantiles {
			at := -math.Log10(1 - q/100)
			if n := latency.TotalCount(); n > 0 && at < math.Log10(float64(n)) {
				v := float64(latency.ValueAtQuantile(q))
				d.dot("dot "+looks[i].class, x.at(at), y.at(max(1, v)), 3,
					fmt.Sprintf("%s p%s: %s", looks[i].label, percent(q), latencyText(v)))
			}
		}
	}
	return plot{Title: about("Latency by percentile", name, p.load), Keys: legend(looks),
		Note: "Each equal step to the right leaves a tenth as many requests, those that took longest; a curve ends at the slowest one.",
		SVG:  d.done("latency by percentile")}
}

// percentileTicks are 0 %, 50 % and then a nine more each time.
func percentileTicks(tail float64) []tick {
	ticks := []tick{{0, "0 %"}, {math.Log10(2), "50 %"}}
	for nines := 1; float64(nines) <= tail; nines++ {
		ticks = append(ticks, tick{float64(nines), fmt.Sprintf("%.*f %%", max(0, nines-2), 100*(1-math.Pow(10, -float64(nines))))})
	}
	return ticks
}

func percent(q float64) string { return fmt.Sprintf("%g", q) }

// timePlot draws the runs of a panel one after another: the rate above, p50 and p99 below.
func (r *Report) timePlot(p panel, variants map[string]int) plot {
	runs, looks := r.runsOf(p), looks(p.groups, variants)
	whole, greatest := 0.0, 0.0
	slowest, fastest := 0.0, math.Inf(1)
	for _, m := range runs {
		whole += m.run.length()
		for i, s := range m.run.Seconds {
			greatest = max(greatest, rateAt(m.run.Seconds, i))
			if s.Done > 0 && s.P50 > 0 && s.P99 > 0 {
				fastest, slowest = min(fastest, micros(s.P50)), max(slowest, micros(s.P99))
			}
		}
	}
	upper := frame{left: 84, right: plotWidth - 20, top: 24, bottom: 190}
	lower := frame{left: 84, right: plotWidth - 20, top: 216, bottom: 416}
	d := draw(lower.bottom + 46)
	x, along := fromZero(whole, upper.left, upper.right, significant)
	x.greatest = max(whole, 1) // no space for a round number
	for len(along) > 1 && along[len(along)-1].at > x.greatest {
		along = along[:len(along)-1]
	}
	rate, rates := fromZero(greatest, upper.bottom, upper.top, significant)
	late, lates := logarithmic(fastest, slowest, lower.bottom, lower.top, latencyText)

	at, turn, marked := 0.0, -1, 0.0
	for i, m := range runs { // shade every other turn first, below everything else
		next := at + m.run.length()
		if m.run.Turn%2 == 1 {
			d.rect("turn", x.at(at), upper.top, x.at(next)-x.at(at), lower.bottom-upper.top, "")
		}
		if m.run.Turn != turn && (i == 0 || x.at(at) > marked) {
			turn = m.run.Turn
			label := fmt.Sprintf("turn %d", turn+1)
			d.text("tick", "start", x.at(at)+4, upper.top-8, label)
			marked = x.at(at) + 8*float64(len(label))
		}
		at = next
	}
	d.horizontal(upper, rate, rates, "requests/s")
	d.horizontal(lower, late, lates, "latency")
	for _, t := range along {
		d.line("grid", x.at(t.at), upper.top, x.at(t.at), upper.bottom)
	}
	d.vertical(lower, x, along, "seconds under load, run after run")
	at = 0
	for _, m := range runs {
		m.run.overTime(d, looks[m.group].class, at, x, rate, late)
		at += m.run.length()
	}
	return plot{Title: about("Every second", p.load), Keys: append(legend(looks), key{"plain", "p50"}, key{"plain thin", "p99"}),
		Note: "Runs in the order in which they were made; the variants take turns, and what lay between two runs is left out.",
		SVG:  d.done("rate and latency over time")}
}

type placed struct {
	run   *Run
	group int // index in the panel
}

// runsOf returns the runs of a panel as they were made.
func (r *Report) runsOf(p panel) (found []placed) {
	for i := range r.Runs {
		for at, g := range p.groups {
			if g.variant == r.Runs[i].Variant && g.load == r.Runs[i].Load {
				found = append(found, placed{&r.Runs[i], at})
			}
		}
	}
	return found
}

// length returns how long a run took, in seconds, its last second included.
func (r *Run) length() float64 {
	took := r.Took
	for _, s := range r.Seconds {
		took = max(took, s.At)
	}
	return took.Seconds()
}

// overTime draws one run that began at the given second of the plot. A second without requests
// interrupts the latencies.
func (r *Run) overTime(d *drawing, class string, began float64, x, rate, late scale) {
	var rates, p50, p99 []point
	latencies := func() {
		d.path("curve "+class, p50, "")
		d.path("curve thin "+class, p99, "")
		p50, p99 = nil, nil
	}
	for i, s := range r.Seconds {
		at := x.at(began + max(0, s.At.Seconds()-0.5)) // the middle of the second
		rates = append(rates, point{at, rate.at(rateAt(r.Seconds, i))})
		if s.Done == 0 || s.P50 <= 0 || s.P99 <= 0 {
			latencies()
			continue
		}
		p50, p99 = append(p50, point{at, late.at(micros(s.P50))}), append(p99, point{at, late.at(micros(s.P99))})
	}
	d.path("curve "+class, rates, fmt.Sprintf("%s, turn %d", r.Variant, r.Turn+1))
	latencies()
}

// costPlot stacks the processor time per request.
func costPlot(groups []*group) plot {
	greatest := 0.0
	costs := make([]cost, len(groups))
	for i, g := range groups {
		if c := costOf(g.runs...); !math.IsNaN(c.total()) && !math.IsInf(c.total(), 0) {
			costs[i], greatest = c, max(greatest, c.total())
		}
	}
	d, f, middle := strips(groups, 36)
	x, ticks := fromZero(greatest, f.left, f.right, significant)
	d.vertical(f, x, ticks, "µs of processor per request")
	for i, c := range costs {
		from := 0.0
		for _, part := range []struct {
			class, name string
			spent       float64
		}{{"c0", "server", c.server}, {"c1", "database", c.database}, {"c2", "load", c.load}} {
			d.rect("part "+part.class, x.at(from), middle(i)-10, x.at(part.spent)-x.at(0), 20,
				fmt.Sprintf("%s: %s µs", part.name, significant(part.spent)))
			from += part.spent
		}
		d.text("figure", "start", f.right+12, middle(i)+4, significant(c.total())+" µs")
	}
	return plot{Title: "Processor time per request", Keys: []key{{"c0", "server"}, {"c1", "database"}, {"c2", "load generator"}},
		Note: "All processor time of a run divided by the requests that were done in it, failed ones not counted as done.",
		SVG:  d.done("processor time per request, by variant")}
}
