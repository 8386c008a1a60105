package soak

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"mlsd/clientsim/load"
)

// This file says which measures of a soak run may not grow, and judges them.
//
// The first quarter of a run is its warm-up. The median of the last quarter may exceed the median
// of the second quarter by a share of it and a constant. Medians of quarters forget single peaks,
// and a wave that is much shorter than a quarter moves both alike. A leak of L per hour grows by
// L × T / 2 between the two medians in a run of T hours: so it is found if that exceeds what is
// allowed. The longer the run, the smaller the leak that it finds.

// limit says how much a measure may grow, in its unit.
type limit struct {
	share float64 // of the second quarter's median
	plus  float64
	// quarter is the shortest quarter in which the measure is judged.
	quarter time.Duration
}

// allowed is the largest median of the last quarter.
func (l limit) allowed(before float64) float64 { return before*(1+l.share) + l.plus }

// rule is a measure that may not grow.
type rule struct {
	name  string
	of    measure
	limit limit
	text  func(float64) string // writes a value with its unit
	table bool                 // it is the size of a table
}

// Growth is the judgement of one rule.
type Growth struct {
	Name string
	// Before is the median of the second quarter, and After the median of the last quarter. Allowed is
	// the most that After may be, and Limit says how Allowed follows from Before. All are texts with
	// their units.
	Before, After, Allowed, Limit string
	Grew                          bool
	// Short is set if the run is too short to judge.
	Short bool
	// Small is set for a table that is below 1 MiB.
	Small bool
}

// minSamples is how many samples a quarter needs.
const minSamples = 5

// judge judges points of a run of a length.
func (r rule) judge(points []point, length time.Duration) Growth {
	g := Growth{Name: r.name, Before: load.None, After: load.None, Allowed: load.None,
		Limit: fmt.Sprintf("%g %% + %s", 100*r.limit.share, r.text(r.limit.plus))}
	quarter := length / 4
	in := func(from, to time.Duration) (values []float64) {
		for _, p := range points {
			if p.x > from.Seconds() && p.x <= to.Seconds() {
				values = append(values, p.y)
			}
		}
		return values
	}
	second, last := in(quarter, 2*quarter), in(3*quarter, length)
	if g.Short = quarter < r.limit.quarter || len(second) < minSamples || len(last) < minSamples; g.Short {
		return g
	}
	before, after := load.Median(second), load.Median(last)
	allowed := r.limit.allowed(before)
	g.Before, g.After, g.Allowed, g.Grew = r.text(before), r.text(after), r.text(allowed), after > allowed
	g.Small = r.table && max(before, after) < mib
	return g
}

// Growths judges every rule.
func (s *Record) Growths() (found []Growth) {
	for _, r := range s.rules() {
		if points := s.points(r.of); len(points) > 0 {
			found = append(found, r.judge(points, s.length()))
		}
	}
	return found
}

// Kept reports whether nothing grew, and no promise was broken.
func (s *Record) Kept() bool {
	return (s.End == nil || len(s.End.Broken) == 0) &&
		!slices.ContainsFunc(s.Growths(), func(g Growth) bool { return g.Grew })
}

const mib = 1 << 20

// The limits. The shares cover what a busy machine does to a measure, and the constants what a
// small measure does by itself.
var (
	// A garbage collector lets memory swing, and caches fill: of accounts, statements and events. A
	// server at 20 messages a second remembers the newest 50 minutes, and forgets half of them then.
	memoryLimit = limit{share: 0.15, plus: 12 * mib, quarter: 30 * time.Minute}
	// A few requests and connections come and go.
	handleLimit = limit{share: 0.10, plus: 10, quarter: time.Minute}
	// The sweeper runs every ten minutes, so a quarter has two of its waves at least. Autovacuum
	// lets a table grow by a few per cent before it makes space.
	tableLimit = limit{share: 0.15, plus: 2 * mib, quarter: 20 * time.Minute}
	// Rows of one kind have one size. The figure of rows is an estimate.
	rowLimit  = limit{share: 0.15, plus: 50, quarter: 20 * time.Minute}
	deadLimit = limit{share: 0.25, plus: 5000, quarter: 20 * time.Minute}
	// The machine has other work.
	latencyLimit = limit{share: 0.5, plus: 0.005, quarter: time.Minute}
	tailLimit    = limit{share: 1, plus: 0.050, quarter: time.Minute}
	workLimit    = limit{share: 0.25, plus: 256, quarter: 20 * time.Minute}
	backlogLimit = limit{share: 0.5, plus: 1, quarter: time.Minute}
)

// keptTables are the tables whose rows stay for longer than a run, and why. Their sizes grow with
// their rows. So the bytes of a row may not grow.
var keptTables = map[string]string{
	"events":         "until the end of their day",
	"convo_events":   "until the end of their day",
	"accounts":       "an erased account leaves a mark",
	"erasures":       "the record of an erasure stays",
	"deleted_convos": "a deleted convo leaves a mark",
	"admin_actions":  "the record of what operators did stays",
	"caller_counts":  "for seven days",
	"requests":       "for three days",
}

// rules returns the rules for what the run has measured.
func (s *Record) rules() []rule {
	var all []rule
	add := func(name string, of measure, l limit, text func(float64) string) {
		all = append(all, rule{name: name, of: of, limit: l, text: text})
	}
	for _, node := range s.nodes() {
		add("resident memory, "+node, value("resident/"+node), memoryLimit, load.Size)
		add("heap after a collection, "+node, liveHeap(node), memoryLimit, load.Size)
		add("goroutines, "+node, value("goroutines/"+node), handleLimit, load.Figure)
		add("open files, "+node, value("files/"+node), handleLimit, load.Figure)
	}
	add("private memory of all database connections", value("backends"), memoryLimit, load.Size)
	add("database connections", value("connections"), handleLimit, load.Figure)
	add("send, p50", value("send/p50"), latencyLimit, load.Seconds)
	add("send, p99", value("send/p99"), tailLimit, load.Seconds)
	add("event, p50", value("event/p50"), latencyLimit, load.Seconds)
	add("event, p99", value("event/p99"), tailLimit, load.Seconds)
	add("wait of the oldest event for its number", value("outbox-oldest"), backlogLimit, load.Seconds)
	add("WAL a message", quotient(perSecond(value("wal")), perSecond(value("sent"))), workLimit, load.Size)
	add("dead rows, all tables", total(s.names("dead/")...), deadLimit, load.Figure)
	for _, table := range s.tables() {
		if _, ok := keptTables[table]; ok {
			add(table+", bytes a row", quotient(tableSize(table), manyRows(table)), rowLimit, load.Size)
			continue
		}
		all = append(all, rule{name: table + ", with its indexes", of: tableSize(table), limit: tableLimit, text: load.Size,
			table: true})
	}
	return all
}

// tables returns the names of all tables, in order.
func (s *Record) tables() (found []string) {
	for _, name := range s.names("table/") {
		found = append(found, strings.TrimPrefix(name, "table/"))
	}
	return found
}

// tableSize is the size of a table with its indexes, in bytes.
func tableSize(table string) measure { return total("table/"+table, "index/"+table) }

// liveHeap is what was in use after the last garbage collection. The next collection is due when
// that has grown by gc-percent (GOGC).
func liveHeap(node string) measure {
	return func(now, _ *Sample) (float64, bool) {
		next, ok := now.Values["next-gc/"+node]
		percent, known := now.Values["gc-percent/"+node]
		return next / (1 + percent/100), ok && known
	}
}

// minRows is how many rows a table needs before their size says something.
const minRows = 1000

// manyRows is the number of a table's rows, if it has many.
func manyRows(table string) measure {
	return func(now, _ *Sample) (float64, bool) {
		v, ok := now.Values["rows/"+table]
		return v, ok && v >= minRows
	}
}

// names returns the names of the last sample's values with a prefix, in order.
func (s *Record) names(prefix string) (found []string) {
	if len(s.Samples) == 0 {
		return nil
	}
	for name := range s.Samples[len(s.Samples)-1].Values {
		if strings.HasPrefix(name, prefix) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

// nodes returns the names of the servers.
func (s *Record) nodes() (found []string) {
	for _, name := range s.names("goroutines/node") {
		found = append(found, strings.TrimPrefix(name, "goroutines/"))
	}
	return found
}

// verdict is the verdict in one line.
func (s *Record) verdict() string {
	grew, short := 0, 0
	all := s.Growths()
	for _, g := range all {
		if g.Grew {
			grew++
		}
		if g.Short {
			short++
		}
	}
	text := fmt.Sprintf("%d of %d measures grew", grew, len(all))
	if short > 0 {
		text += fmt.Sprintf(", %d are not judged: the run is too short", short)
	}
	switch {
	case s.End == nil:
		return text + "; the run has no end yet, so no promise is judged"
	case len(s.End.Broken) > 0:
		return text + fmt.Sprintf("; %s broken", load.Plural(len(s.End.Broken), "promise"))
	}
	return text + "; every promise kept"
}
