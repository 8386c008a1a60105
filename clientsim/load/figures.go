package load

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// This file writes figures for people.

// None stands for a missing figure.
const None = "–"

// Figure writes three significant digits, and always all digits before the point.
func Figure(v float64) string {
	switch {
	case math.IsNaN(v), math.IsInf(v, 0):
		return None
	case math.Abs(v) >= 99.95:
		return thousands(int64(math.Round(v)))
	case v == math.Trunc(v): // whole numbers have no digits after the point
		return strconv.FormatFloat(v, 'f', 0, 64)
	case math.Abs(v) >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case math.Abs(v) >= 0.0995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for at := len(text) - 3; at > start; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// Plural writes a number of things.
func Plural(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return thousands(int64(n)) + " " + of + "s"
}

// Seconds writes seconds in the unit that suits them.
func Seconds(s float64) string {
	switch {
	case s < 999.5e-6:
		return Figure(math.Round(s*1e9)/1e3) + " µs"
	case s < 999.5e-3:
		return Figure(s*1e3) + " ms"
	}
	return Figure(s) + " s"
}

// Size writes bytes in the unit that suits them.
func Size(n float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.size {
			return Figure(n/unit.size) + " " + unit.name
		}
	}
	return fmt.Sprintf("%.0f B", max(n, 0))
}

// Median returns NaN for no values.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
