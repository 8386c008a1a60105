package api_test

import (
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	scalingName   = "../docs/SCALING.md"
	scalingBegins = "<!-- generated -->\n"
	scalingEnds   = "<!-- end -->\n"
)

// storedThing is a row of the tables of docs/SCALING.md that say what the database stores.
type storedThing struct {
	tables []string
	bytes  float64 // of one thing, with its part of the indexes
	year   float64 // how many a user makes in a year
	days   float64 // how long each is kept; 365 if for ever
	kB     float64 // what a user takes; of what is kept for ever, what a year adds
}

// scalingPage is what docs/SCALING.md says about the disk.
type scalingPage struct {
	text         string
	rows         map[string]storedThing
	kept, growth float64 // kB of a user; kB that a year adds
	heapBytes    float64 // of a message, in the table without its indexes
}

func readScalingPage(t *testing.T) (p scalingPage) {
	t.Helper()
	text, err := os.ReadFile(scalingName)
	if err != nil {
		t.Fatal(err)
	}
	p = scalingPage{text: string(text), rows: map[string]storedThing{}}
	row := regexp.MustCompile(
		"(?m)^\\| (.+) \\| (`.+`) \\| ([\\d,]+) \\| ([\\d,]+) \\| (\\d+|for ever) \\| ([\\d,]+) \\|$")
	for _, m := range row.FindAllStringSubmatch(p.text, -1) {
		r := storedThing{tables: strings.Split(strings.ReplaceAll(m[2], "`", ""), ", "), bytes: p.number(t, m[3]),
			year: p.number(t, m[4]), days: 365, kB: p.number(t, m[6])}
		if m[5] == "for ever" {
			p.growth += r.kB
		} else {
			r.days = p.number(t, m[5])
			p.kept += r.kB
		}
		p.expect(t, m[1]+", kB of a user", r.kB, r.bytes*r.year/365*r.days/1000, 1)
		p.rows[m[1]] = r
	}
	heap := regexp.MustCompile(`([\d,]+) bytes of a message are in the table itself`).FindStringSubmatch(p.text)
	if heap == nil {
		t.Fatalf("%s does not say how many bytes of a message are in the table itself", scalingName)
	}
	p.heapBytes = p.number(t, heap[1])
	return p
}

func (scalingPage) number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// expect fails the test if the page says something else than is true.
func (p scalingPage) expect(t testing.TB, what string, said, is, tolerance float64) {
	t.Helper()
	if math.Abs(said-is) > tolerance {
		t.Errorf("%s says of %s: %g; it is %.4g", scalingName, what, said, is)
	}
}

// What PostgreSQL does with the rows of messages. Settings are its defaults.
const (
	pageBytes   = 8192
	mostPages   = 1 << 32 // of one table
	mostBodies  = 1 << 32 // that are not in the table itself, but in its TOAST table
	deadShare   = 0.05    // autovacuum_vacuum_scale_factor of messages
	deadBytes   = 6       // of memory for a dead row, up to PostgreSQL 16
	readCost    = 2       // vacuum_cost_page_miss
	dirtyCost   = 20      // vacuum_cost_page_dirty
	costPerHour = 200 / 0.002 * 3600
	heapChanges = 3             // vacuums change a page to freeze it, to remove its rows, and to free their places
	walBytes    = 2190 + 3*1340 // of a message: its append alone, and three changes of its page (BenchmarkLife)
	userXIDs    = 150           // in a day, at most: 50 messages, 50 moves of the stream, 40 cursors, 10 others
)

// atScale is what a number of users takes. Sizes are in bytes.
type atScale struct {
	disk, growth float64 // growth is what a year adds for ever
	rows, heap   float64 // of messages; heap is the table without its indexes
	wal, xids    float64 // in a day
	period       float64 // hours between two vacuums of messages
	small, large float64 // hours that a vacuum takes, with 64 MB of memory and with 1 GB
}

func (p scalingPage) at(users float64) atScale {
	m := p.rows["a message of 1 KiB"]
	perDay := users * m.year / 365
	rows := perDay * m.days
	dead := rows * deadShare
	vacuum := func(memory float64) (hours float64) {
		passes := math.Ceil(dead * deadBytes / memory)
		indexPages := rows * (m.bytes - p.heapBytes) / pageBytes
		heapPages := dead * p.heapBytes / pageBytes
		return (passes*indexPages*readCost + heapChanges*heapPages*(readCost+dirtyCost)) / costPerHour
	}
	return atScale{
		disk: users * p.kept * 1000, growth: users * p.growth * 1000,
		rows: rows, heap: rows * p.heapBytes * (1 + deadShare),
		wal: perDay * walBytes, xids: users * userXIDs,
		period: m.days * deadShare * 24, small: vacuum(64 << 20), large: vacuum(1 << 30),
	}
}

// The table for one and five million users, and the limits of one PostgreSQL, follow from the tables
// of what is stored, which TestScaling checks.
func TestScalingTable(t *testing.T) {
	p := readScalingPage(t)
	const tera, million = 1e12, 1e6
	one, five := p.at(million), p.at(5*million)
	var want strings.Builder
	want.WriteString("| | 1 million users | 5 million |\n|---|---|---|\n")
	line := func(what, unit string, decimals int, of func(atScale) float64) {
		fmt.Fprintf(&want, "| %s | %.*f %s | %.*f %s |\n", what, decimals, of(one), unit, decimals, of(five), unit)
	}
	line("disk", "TB", 1, func(a atScale) float64 { return a.disk / tera })
	line("what a year adds for ever", "TB", 1, func(a atScale) float64 { return a.growth / tera })
	line("the table `messages`, without its indexes", "TB", 1, func(a atScale) float64 { return a.heap / tera })
	line("WAL in a day", "TB", 2, func(a atScale) float64 { return a.wal / tera })
	line("transaction ids in a day, at most", "million", 0, func(a atScale) float64 { return a.xids / million })
	line("from one vacuum of `messages` to the next", "hours", 0,
		func(a atScale) float64 { return a.period })
	line("it takes at the default pace, with `autovacuum_work_mem = 1GB`", "hours", 0,
		func(a atScale) float64 { return a.large })
	line("it takes at the default pace, with the default of 64 MB", "hours", 0,
		func(a atScale) float64 { return a.small })
	p.checkLimits(t)
	before, rest, found := strings.Cut(p.text, scalingBegins)
	got, after, closed := strings.Cut(rest, scalingEnds)
	if !found || !closed {
		t.Fatalf("%s has no generated table", scalingName)
	}
	if flag.Lookup("update").Value.String() == "true" {
		got = want.String()
		if err := os.WriteFile(scalingName, []byte(before+scalingBegins+got+scalingEnds+after), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want.String(), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s\nto write it: go test ./api -run TestScalingTable -update", scalingName, diff)
	}
}

// checkLimits checks how many millions of users the page gives for one PostgreSQL.
func (p scalingPage) checkLimits(t *testing.T) {
	t.Helper()
	text := regexp.MustCompile(`(\d+) million users with the defaults of PostgreSQL, (\d+) million with (?s:.*)` +
		`one message in five of (\d+) million users with 90 days(?s:.*)` +
		`(\d+) million users with 90 days, (\d+) million with 30 days(?s:.*)`).FindStringSubmatch(p.text)
	if text == nil {
		t.Fatalf("%s does not say how many users one PostgreSQL carries", scalingName)
	}
	for i, fits := range []func(a atScale) bool{
		func(a atScale) bool { return a.small <= a.period },
		func(a atScale) bool { return a.large <= a.period },
		func(a atScale) bool { return a.rows/5 <= mostBodies },
		func(a atScale) bool { return a.heap <= mostPages*pageBytes },
		func(a atScale) bool { return a.heap*30/90 <= mostPages*pageBytes },
	} {
		said := p.number(t, text[i+1])
		if !fits(p.at(said*1e6)) || fits(p.at((said+1)*1e6)) {
			t.Errorf("%s: %g million users are not the limit", scalingName, said)
		}
	}
}
