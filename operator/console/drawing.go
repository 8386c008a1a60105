package console

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Positions of the lines of a drawing, in units of its viewBox (views/now.html).
const (
	plotLeft, plotRight = 4, 356
	plotTop, plotBottom = 18, 102
)

// bar is a bar of a drawing.
type bar struct{ X, Y, Width, H int }

// bars returns a bar for each value, from left to right. The highest bar reaches from bottom to
// top.
func bars(values []int64, left, step, width, top, bottom int) []bar {
	most := int64(1)
	for _, v := range values {
		most = max(most, v)
	}
	all := make([]bar, len(values))
	for i, v := range values {
		h := max(int(float64(bottom-top)*float64(v)/float64(most)), 1)
		all[i] = bar{X: left + i*step, Y: bottom - h, Width: width, H: h}
	}
	return all
}

// drawing is a chart, with its lines as SVG paths and its values as a table.
type drawing struct {
	chart
	Top    string // value at the upper edge
	Since  string // time at the left edge
	Spoken string // the drawing in words
	Lines  []drawnLine
	Times  []time.Time // times of the table's rows, the newest first
}

type drawnLine struct {
	Key, Name string
	Now       string   // the newest value
	Path      string   // the d of an SVG path
	Cells     []string // the values at Times
}

// draw draws all charts of the samples. now is the newest time, and live has the values at that
// time.
func draw(all []chart, samples []sample, live sample) []drawing {
	drawings := make([]drawing, 0, len(all))
	at := 0
	for _, c := range all {
		d := drawing{chart: c, Since: Age(width(samples, live.at))}
		top := 0.0
		for i := range c.Lines {
			top = max(top, highest(of(samples, at+i)), highest(live.values[at+i:at+i+1]))
		}
		top = c.round(top)
		d.Top = c.unit(top)
		rows := tableRows(samples)
		for _, n := range rows {
			d.Times = append(d.Times, samples[n].at)
		}
		for i, l := range c.Lines {
			values := of(samples, at+i)
			one := drawnLine{Key: fmt.Sprintf("%s.%d", c.Key, i), Name: l.Name, Now: c.unit.written(live.values[at+i]),
				Path: pathOf(samples, values, live.at, top)}
			for _, n := range rows {
				one.Cells = append(one.Cells, c.unit.written(values[n]))
			}
			d.Lines = append(d.Lines, one)
		}
		d.Spoken = spoken(d, samples, at)
		at += len(c.Lines)
		drawings = append(drawings, d)
	}
	return drawings
}

// tableStep is how many samples are between two rows of a table: 5 minutes.
const tableStep = 30

// tableRows returns the samples that the table shows, the newest first.
func tableRows(samples []sample) (rows []int) {
	for n := len(samples) - 1; n >= 0; n -= tableStep {
		rows = append(rows, n)
	}
	return rows
}

// spoken describes the drawing in words, for people who cannot see it.
func spoken(d drawing, samples []sample, at int) string {
	if len(samples) == 0 {
		return "There are no values yet."
	}
	var parts []string
	for i, l := range d.Lines {
		parts = append(parts, fmt.Sprintf("%s: now %s, at most %s", l.Name, l.Now, d.unit(highest(of(samples, at+i)))))
	}
	return "In the last hour: " + strings.Join(parts, "; ") + "."
}

// round returns a number above top that has few digits, so that the scale does not change with each
// value.
func (c chart) round(top float64) float64 {
	if top <= 0 {
		return 1
	}
	base := 10.0
	if c.Key == "memory" {
		base = 2
	}
	digit := math.Pow(base, math.Floor(math.Log(top)/math.Log(base))) / 2
	return math.Ceil(top/digit) * digit
}

// The shortest and the longest period that a drawing shows.
const (
	shortest = 10 * time.Minute
	longest  = kept * step
)

// width returns the period that drawings of some samples show, in whole minutes.
func width(samples []sample, newest time.Time) time.Duration {
	if len(samples) == 0 {
		return shortest
	}
	age := newest.Sub(samples[0].at)
	return min(max(shortest, (age+5*time.Minute-1).Truncate(5*time.Minute)), longest)
}

// pathOf returns the d attribute of the SVG path of some values. The newest time is at the right
// edge. A missing value leaves a gap.
func pathOf(samples []sample, values []float64, newest time.Time, top float64) string {
	shown := width(samples, newest)
	var d strings.Builder
	drawing := false
	for i, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			drawing = false
			continue
		}
		x := plotRight - (plotRight-plotLeft)*float64(newest.Sub(samples[i].at))/float64(shown)
		y := plotBottom - (plotBottom-plotTop)*v/top
		switch {
		case x < plotLeft:
			continue
		case drawing:
			fmt.Fprintf(&d, "L%.1f %.1f", x, y)
		default: // a line of no length shows a single value, because its ends are round
			fmt.Fprintf(&d, "M%.1f %.1fh0", x, y)
		}
		drawing = true
	}
	return d.String()
}
