package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// none stands for a missing figure.
const none = "–"

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

// significant writes three significant digits, and always all digits before the point.
func significant(v float64) string {
	switch {
	case math.IsNaN(v), math.IsInf(v, 0):
		return none
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

// latencyText writes microseconds in the unit that suits them.
func latencyText(us float64) string {
	switch {
	case us < 999.5:
		return significant(us) + " µs"
	case us < 999.5e3:
		return significant(us/1e3) + " ms"
	}
	return significant(us/1e6) + " s"
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func bytesOf(n uint64) string {
	for _, unit := range []struct {
		size uint64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.size {
			return significant(float64(n)/float64(unit.size)) + " " + unit.name
		}
	}
	return fmt.Sprintf("%d B", n)
}

func plural(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return thousands(int64(n)) + " " + of + "s"
}

// durable says what a COMMIT means: whether its data is on the disk after it.
func (d Database) durable() string {
	fsync, commit := d.Settings["fsync"], d.Settings["synchronous_commit"]
	switch {
	case fsync == "" || commit == "":
		return "not known whether durable: fsync and synchronous_commit were not asked for"
	case fsync != "on":
		return fmt.Sprintf("NOT durable: fsync %s: nothing is flushed, a crash can lose everything", fsync)
	case commit == "off":
		return "NOT durable: synchronous_commit off: COMMIT does not wait for the disk, a crash loses the last ones"
	}
	return fmt.Sprintf("durable: each COMMIT waits for the disk (fsync %s, synchronous_commit %s)", fsync, commit)
}

// text is the machine in one line.
func (m Machine) text() string {
	said := []string{m.CPU, plural(m.Cores, "core"), bytesOf(m.Memory), m.OS, m.Go}
	if m.Server != "" {
		said = append(said, "mlsd "+m.Server)
	}
	return joined(said...)
}

// joined joins the parts that are not empty.
func joined(parts ...string) string {
	var said []string
	for _, part := range parts {
		if part != "" {
			said = append(said, part)
		}
	}
	return strings.Join(said, ", ")
}

// text is the verdict in one line.
func (v *Verdict) text() string {
	if v == nil {
		return "No verdict: the convos were not read afterwards"
	}
	result := "Every promise kept"
	if !v.Kept() {
		result = "BROKEN"
	}
	return fmt.Sprintf("%s: %s lost, %s doubled, %s gaps, %s violated", result,
		thousands(v.Lost), thousands(v.Doubled), thousands(v.Gaps), thousands(int64(len(v.Violated))))
}

// counts gives the numbers behind the verdict.
func (v *Verdict) counts() string {
	return fmt.Sprintf("%s acknowledged, %s stored, %s of them never acknowledged; %s retried, %s answers dropped, %s "+
		"sent twice, %s kills",
		thousands(v.Sent), thousands(v.Stored), thousands(v.Unknown), thousands(v.Retried), thousands(v.Dropped),
		thousands(v.Duplicate), thousands(v.Kills))
}
