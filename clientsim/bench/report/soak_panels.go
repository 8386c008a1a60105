package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"
)

// This file draws a soak run: small pictures over the same hours, one for each kind of measure.

// line is one line of a small picture.
type line struct {
	name string
	of   measure
}

// small is one small picture.
type small struct {
	title string
	unit  string // of the vertical axis
	lines []line
	log   bool
	label func(float64) string // of a tick
	peaks bool                 // shows the greatest value of each step, and not the median
}

// Sizes of a small picture, in pixels.
const (
	smallWidth  = 490
	smallHeight = 230
)

// mostPoints is how many points a line has. Each is the median of the samples of a step.
const mostPoints = 160

// smalls are the pictures of a run.
func (s *Soak) smalls() []small {
	mebi := func(of measure) measure { return scaled(of, 1.0/mib) }
	each := func(prefix string) (lines []line) {
		for _, node := range s.nodes() {
			lines = append(lines, line{node, value(prefix + node)})
		}
		return lines
	}
	var resident, heap, cpu, lag []line
	for _, node := range s.nodes() {
		resident = append(resident, line{node, mebi(value("resident/" + node))})
		heap = append(heap, line{node, mebi(liveHeap(node))})
		cpu = append(cpu, line{node, scaled(perSecond(value("cpu/"+node)), 100)})
		lag = append(lag, line{node, quotient(perSecond(value("lag-sum/"+node)), perSecond(value("lag-count/"+node)))})
	}
	resident = append(resident, line{"load", mebi(value("resident/load"))})
	cpu = append(cpu, line{"database", scaled(perSecond(value("cpu/database")), 100)}, line{"load", scaled(perSecond(value("cpu/load")), 100)})
	return []small{
		{title: "Messages", unit: "a second", lines: []line{{"sent", perSecond(value("sent"))}}},
		{title: "Time to an answer", unit: "", log: true, label: secondsText, lines: []line{{"p50", value("send/p50")}, {"p99", value("send/p99")}}},
		{title: "Time to an event", unit: "", log: true, label: secondsText, lines: []line{{"p50", value("event/p50")}, {"p99", value("event/p99")}}},
		{title: "Age of events in the servers", unit: "", log: true, label: secondsText, lines: lag},
		{title: "Resident memory", unit: "MiB", lines: resident},
		{title: "Heap after a collection", unit: "MiB", lines: heap},
		{title: "Goroutines", unit: "", lines: each("goroutines/")},
		{title: "Open files", unit: "", lines: each("files/")},
		{title: "Private memory of database connections", unit: "MiB", lines: []line{{"all", mebi(value("backends"))}}},
		{title: "Tables that keep a steady size", unit: "MiB", lines: s.largest(false)},
		{title: "Tables that keep their rows", unit: "MiB", lines: s.largest(true)},
		{title: "Dead rows", unit: "thousands", lines: []line{{"all tables", scaled(total(s.names("dead/")...), 1e-3)}}},
		{title: "WAL", unit: "KiB a second", lines: []line{{"written", scaled(perSecond(value("wal")), 1.0/1024)}}},
		{title: "Processor", unit: "% of a core", lines: cpu},
		{title: "Answers that ask for another try", unit: "a second", peaks: true, lines: []line{
			{"5xx", perSecond(value("answers/5xx"))}, {"429", perSecond(value("answers/429"))}, {"no answer", perSecond(value("answers/none"))},
		}},
		{title: "Rounds of scenarios", unit: "in all", lines: []line{{"played", value("rounds")}, {"failed", value("rounds-failed")}}},
	}
}

func scaled(of measure, by float64) measure {
	return func(now, before *Sample) (float64, bool) {
		v, ok := of(now, before)
		return v * by, ok
	}
}

// largest returns the tables that are the largest at the end, with their indexes, in MiB. kept
// chooses between those whose rows stay and the others.
func (s *Soak) largest(kept bool) (lines []line) {
	const most = 4
	if len(s.Samples) == 0 {
		return nil
	}
	last := &s.Samples[len(s.Samples)-1]
	var tables []string
	for _, table := range s.tables() {
		if _, stays := keptTables[table]; stays == kept {
			tables = append(tables, table)
		}
	}
	slices.SortStableFunc(tables, func(a, b string) int {
		x, _ := tableSize(a)(last, nil)
		y, _ := tableSize(b)(last, nil)
		return cmp.Compare(y, x)
	})
	for _, table := range tables[:min(most, len(tables))] {
		lines = append(lines, line{table, scaled(tableSize(table), 1.0/mib)})
	}
	return lines
}

// draw draws the picture of a run.
func (p small) draw(s *Soak) *drawing {
	made := picture{title: joined(p.title, p.unit), log: p.log, label: p.label, early: s.length().Seconds() / 4, earlyName: "warm-up"}
	for _, l := range p.lines {
		made.names = append(made.names, l.name)
		made.curves = append(made.curves, thinned(s.points(l.of), s.length(), p.peaks))
	}
	return made.draw(overHours(s.length(), smallFrame))
}

// picture is a small picture with its points.
type picture struct {
	title     string
	names     []string // of the curves
	curves    [][]point
	log       bool
	label     func(float64) string // of a tick
	early     float64              // up to which x is shaded
	earlyName string
}

// smallFrame is where the curves of a small picture are.
var smallFrame = frame{left: 58, right: smallWidth - 10, top: 46, bottom: smallHeight - 26}

// draw draws the picture over a horizontal scale.
func (p picture) draw(x scale, along []tick) *drawing {
	d := &drawing{width: smallWidth, height: smallHeight}
	f := smallFrame
	keys := legendPlaces(p.names)
	if len(keys) > 0 {
		f.top += keys[len(keys)-1].y
	}
	least, greatest := math.Inf(1), 0.0
	for _, curve := range p.curves {
		for _, at := range curve {
			greatest = max(greatest, at.y)
			if at.y > 0 {
				least = min(least, at.y)
			}
		}
	}
	label := p.label
	if label == nil {
		label = significant
	}
	y, ticks := fromZero(greatest, f.bottom, f.top, label)
	if p.log {
		y, ticks = logarithmic(least, greatest, f.bottom, f.top, label)
	}
	if len(ticks) > 0 && p.early > 0 {
		d.rect("turn", f.left, f.top, x.at(p.early)-f.left, f.bottom-f.top, p.earlyName)
	}
	d.across(f, y, ticks)
	d.upwards(f, x, along)
	d.text("label", "start", 0, 14, p.title)
	for i, name := range p.names {
		class := fmt.Sprintf("s%d", i%series)
		placed := make([]point, len(p.curves[i]))
		for j, v := range p.curves[i] {
			placed[j] = point{x.at(v.x), y.at(v.y)}
		}
		d.path("curve "+class, placed, name)
		at := keys[i]
		d.line("curve "+class, at.x, at.y+32, at.x+16, at.y+32)
		d.text("tick", "start", at.x+21, at.y+36, name)
	}
	return d
}

// legendPlaces is where the names of curves stand, from the first one's place, in as many rows as they
// need.
func legendPlaces(names []string) []point {
	const row = 16
	places := make([]point, len(names))
	var at point
	for i, name := range names {
		width := 21 + 12 + 6.8*float64(utf8.RuneCountInString(name))
		if at.x > 0 && at.x+width > smallWidth {
			at = point{0, at.y + row}
		}
		places[i] = at
		at.x += width
	}
	return places
}

// across draws the ticks of the vertical axis, which needs no name: the title has the unit.
func (d *drawing) across(f frame, s scale, ticks []tick) {
	for _, t := range ticks {
		at := s.at(t.at)
		if t.label == "" {
			d.line("faint", f.left, at, f.right, at)
			continue
		}
		d.line("grid", f.left, at, f.right, at)
		d.text("tick", "end", f.left-7, at+4, t.label)
	}
}

func (d *drawing) upwards(f frame, s scale, ticks []tick) {
	for _, t := range ticks {
		d.line("faint", s.at(t.at), f.top, s.at(t.at), f.bottom)
		d.text("tick", "middle", s.at(t.at), f.bottom+18, t.label)
	}
}

// overHours is the scale of time, in seconds, with four to eight ticks.
func overHours(length time.Duration, f frame) (scale, []tick) {
	steps := []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute,
		10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour,
	}
	length = max(length, time.Second)
	step := steps[len(steps)-1]
	for _, s := range steps {
		if length/s <= 8 {
			step = s
			break
		}
	}
	var ticks []tick
	for at := time.Duration(0); at <= length; at += step {
		ticks = append(ticks, tick{at.Seconds(), clock(at)})
	}
	return scale{greatest: length.Seconds(), low: f.left, high: f.right}, ticks
}

// clock writes a time of a run as 1:30 h, 5 min or 20 s.
func clock(at time.Duration) string {
	switch {
	case at == 0:
		return "0"
	case at < time.Minute:
		return fmt.Sprintf("%d s", at/time.Second)
	case at < time.Hour:
		return fmt.Sprintf("%d min", at/time.Minute)
	}
	return fmt.Sprintf("%d:%02d h", at/time.Hour, at%time.Hour/time.Minute)
}

// thinned returns at most mostPoints points. Each is the median of its step, or the greatest value.
func thinned(points []point, length time.Duration, peaks bool) (found []point) {
	if len(points) <= mostPoints {
		return points
	}
	step := length.Seconds() / mostPoints
	for at := 0; at < len(points); {
		end := math.Floor(points[at].x/step)*step + step
		var values []float64
		from := at
		for at < len(points) && (at == from || points[at].x < end) {
			values = append(values, points[at].y)
			at++
		}
		v := median(values)
		if peaks {
			v = slices.Max(values)
		}
		found = append(found, point{(points[from].x + points[at-1].x) / 2, v})
	}
	return found
}
