package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"mlsd/clientsim/load"
)

// Report is one benchmark. In its JSON, durations are in nanoseconds and latencies in microseconds.
type Report struct {
	Scenario string    `json:"scenario"`
	Began    time.Time `json:"began"`
	Seed     uint64    `json:"seed"`
	Machine  Machine   `json:"machine"`
	Load     Load      `json:"load"`
	Turns    []Turn    `json:"turns"` // in order: the variants take turns
	Verdict  *Verdict  `json:"verdict,omitempty"`
	Notes    []string  `json:"notes,omitempty"` // what else a reader must know
}

// Machine is what everything ran on: load, server and database together.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Go     string `json:"go"`
	Server string `json:"server"` // mlsd's version
	// Database is PostgreSQL's version, with the settings that decide what a COMMIT means.
	Database string `json:"database"`
}

// Load is what a benchmark asks of the servers.
type Load struct {
	InFlight    int     `json:"inFlight"`       // number of unanswered requests; at a rate, the largest number
	Rate        float64 `json:"rate,omitempty"` // requests begun per second; 0 means as many as possible
	Servers     int     `json:"servers"`        // mlsd processes
	Convos      int     `json:"convos"`
	Members     int     `json:"members"`               // of each convo
	Senders     int     `json:"senders"`               // accounts that send
	Subscribers int     `json:"subscribers,omitempty"` // open streams
	Body        int     `json:"body"`                  // size of a ciphertext, in bytes
	// Faults makes the benchmark drop answers, send requests twice at the same time, and kill
	// servers.
	Faults bool `json:"faults,omitempty"`
}

// Turn is one turn of one variant.
type Turn struct {
	Variant  string        `json:"variant"` // KEY=VALUE[/KEY=VALUE], as in names of Go benchmarks
	Index    int           `json:"turn"`    // from 0
	Servers  int           `json:"servers"`
	InFlight int           `json:"inFlight"`
	Rate     float64       `json:"rate,omitempty"`
	Took     time.Duration `json:"took"`
	// Main is the operation by which the processor time is divided.
	Main       string                     `json:"main"`
	Operations map[string]*load.Operation `json:"operations"` // by name, such as sendMessage
	Spent      Spent                      `json:"spent"`
}

// Spent is processor time.
type Spent struct {
	Server   time.Duration `json:"server"` // of all mlsd processes
	Database time.Duration `json:"database"`
	Load     time.Duration `json:"load"` // of the benchmark itself
}

// Verdict is the result of reading every convo afterwards.
type Verdict struct {
	Sent      int64    `json:"sent"` // acknowledged
	Stored    int64    `json:"stored"`
	Unknown   int64    `json:"unknown"` // stored and not acknowledged: each must belong to a failed request
	Lost      int64    `json:"lost"`
	Doubled   int64    `json:"doubled"`
	Gaps      int64    `json:"gaps"`     // missing seqs
	Violated  []string `json:"violated"` // by the server's own check and by others
	Retried   int64    `json:"retried"`
	Dropped   int64    `json:"dropped"`   // answers that the client threw away
	Duplicate int64    `json:"duplicate"` // requests sent twice at once
	Kills     int64    `json:"kills"`
}

// Kept reports whether every promise was.
func (v *Verdict) Kept() bool {
	return v.Lost == 0 && v.Doubled == 0 && v.Gaps == 0 && len(v.Violated) == 0
}

// machine describes this machine, a server and a database.
func machine(server, database string) Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Server: server, Database: database}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil { // a system without /proc
		return m
	}
	_, rest, _ := strings.Cut(string(text), "model name")
	line, _, _ := strings.Cut(rest, "\n")
	m.CPU = strings.Trim(line, "\t :")
	return m
}

// WriteJSON writes the report for a program.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// WriteLines writes the runs in the Go benchmark format, for benchstat: a line for each operation.
// The line of the main operation has the processor time. Benchstat does not compare runs whose lines
// "key: value" differ, so the version of mlsd is no such line.
func (r *Report) WriteLines(w io.Writer) error {
	var out strings.Builder
	m, l := r.Machine, r.Load
	fmt.Fprintf(&out, "# clientsim bench %s, seed %d, mlsd %s, %s\n", r.Scenario, r.Seed, m.Server, m.Go)
	fmt.Fprintf(&out, "goos: %s\ngoarch: %s\ncpu: %s\npostgresql: %s\nload: %s\n", runtime.GOOS, runtime.GOARCH, m.CPU,
		m.Database, l.text())
	for i := range r.Turns {
		run := &r.Turns[i]
		for _, name := range run.names() {
			op, kind, cost := run.Operations[name], "/op="+name, ""
			if op.Done == 0 {
				continue
			}
			if name == run.Main {
				c := costOf(run)
				kind, cost = "", fmt.Sprintf(" %.5g server-ns/op %.5g database-ns/op %.5g load-ns/op", c[0], c[1], c[2])
			}
			ns := func(q float64) int64 { return 1000 * op.Latency.ValueAtQuantile(q) }
			fmt.Fprintf(&out, "Benchmark%s/%s%s-%d %d %.5g ns/op %d p50-ns %d p99-ns%s\n", camel(r.Scenario), run.Variant, kind,
				m.Cores, op.Done, float64(run.Took)/float64(op.Done), ns(50), ns(99), cost)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// text is the load in a line.
func (l *Load) text() string {
	text := fmt.Sprintf("%d in flight", l.InFlight)
	if l.Rate > 0 {
		text = fmt.Sprintf("%g a second, at most %d in flight", l.Rate, l.InFlight)
	}
	text += fmt.Sprintf(", %s, %s of %s, %s, %s, %s bodies", load.Plural(l.Servers, "server"),
		load.Plural(l.Convos, "convo"), load.Plural(l.Members, "member"), load.Plural(l.Senders, "sender"),
		load.Plural(l.Subscribers, "subscriber"), load.Size(float64(l.Body)))
	if l.Faults {
		text += ", with faults"
	}
	return text
}

// camel writes send-hot as SendHot.
func camel(name string) (out string) {
	for word := range strings.SplitSeq(name, "-") {
		out += strings.ToUpper(word[:1]) + word[1:]
	}
	return out
}

// names returns the names of the operations, the main one first.
func (r *Turn) names() []string {
	names := slices.Sorted(maps.Keys(r.Operations))
	if at := slices.Index(names, r.Main); at > 0 {
		names = slices.Insert(slices.Delete(names, at, at+1), 0, r.Main)
	}
	return names
}

// text is the run in a line.
func (r *Turn) text() string {
	text := fmt.Sprintf("%s s", load.Figure(r.Took.Seconds()))
	for _, name := range r.names() {
		op := r.Operations[name]
		text += fmt.Sprintf(", %s %s/s p99 %s", name, load.Figure(float64(op.Done)/r.Took.Seconds()), latency(op.Latency, 99))
	}
	return text
}

// latency writes a quantile of latencies.
func latency(l *load.Latency, q float64) string {
	if l.TotalCount() == 0 {
		return load.None
	}
	return load.Seconds(float64(l.ValueAtQuantile(q)) / 1e6)
}

// costOf divides all processor time of some runs by their main operations that succeeded: of the
// servers, of the database and of the load, in nanoseconds. So failures make these more expensive.
func costOf(runs ...*Turn) (cost [3]float64) {
	var done int64
	for _, r := range runs {
		for i, spent := range []time.Duration{r.Spent.Server, r.Spent.Database, r.Spent.Load} {
			cost[i] += float64(spent.Nanoseconds())
		}
		if op := r.Operations[r.Main]; op != nil {
			done += op.Done
		}
	}
	for i := range cost {
		cost[i] /= float64(done)
	}
	return cost
}

// WriteTable writes a row for each operation of a variant, over all turns, and then the verdict.
func (r *Report) WriteTable(w io.Writer) error {
	var text strings.Builder
	m := r.Machine
	fmt.Fprintf(&text, "%s, %s, seed %d\nmlsd %s, %s, %d cores, %s\nPostgreSQL %s\n%s\n\n", r.Scenario,
		r.Began.Format(time.DateTime+" MST"), r.Seed, m.Server, m.CPU, m.Cores, m.Go, m.Database, r.Load.text())
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\ta second\tp50\tp99\tmax\ttakes\tserver\tdatabase\tload\t\n")
	var seen []string
	for i := range r.Turns {
		if variant := r.Turns[i].Variant; !slices.Contains(seen, variant) {
			seen = append(seen, variant)
			r.writeVariant(table, variant)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	text.WriteString("(a second, takes: medians of the turns; latencies: of all turns; " +
		"server, database, load: processor time of an operation)\n\n")
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "- %s\n", note)
	}
	r.Verdict.write(&text)
	_, err := io.WriteString(w, text.String())
	return err
}

// writeVariant writes the rows of a variant. A variant has the same operations in each turn.
func (r *Report) writeVariant(w io.Writer, variant string) {
	var runs []*Turn
	var took []float64
	for i := range r.Turns {
		if run := &r.Turns[i]; run.Variant == variant {
			runs, took = append(runs, run), append(took, run.Took.Seconds())
		}
	}
	for _, name := range runs[0].names() {
		var rates []float64
		failed, all := map[string]int64{}, load.NewLatency()
		for _, run := range runs {
			op := run.Operations[name]
			if op == nil {
				continue
			}
			rates = append(rates, float64(op.Done)/run.Took.Seconds())
			all.Merge(op.Latency.Histogram)
			for failure, n := range op.Failed {
				failed[failure] += n
			}
		}
		fmt.Fprintf(w, "%s %s\t%s\t%s\t%s\t%s\t", variant, name, load.Figure(load.Median(rates)), latency(all, 50),
			latency(all, 99), latency(all, 100))
		if name == runs[0].Main {
			fmt.Fprintf(w, "%s\t", load.Seconds(load.Median(took)))
			for _, ns := range costOf(runs...) {
				fmt.Fprintf(w, "%s µs\t", load.Figure(ns/1e3))
			}
		} else {
			fmt.Fprint(w, "\t\t\t\t")
		}
		if len(failed) > 0 {
			fmt.Fprintf(w, "  failed: %v", failed)
		}
		fmt.Fprintln(w)
	}
}

// write writes what was broken, the counts, and the verdict in a line.
func (v *Verdict) write(w io.Writer) {
	if v == nil {
		fmt.Fprintln(w, "No verdict: the convos were not read afterwards")
		return
	}
	for _, violated := range v.Violated {
		fmt.Fprintf(w, "- violated: %s\n", violated)
	}
	fmt.Fprintf(w, "- %d acknowledged, %d stored, of which %d never acknowledged; %d retried, %d answers dropped, "+
		"%d sent twice, %d kills\n\n", v.Sent, v.Stored, v.Unknown, v.Retried, v.Dropped, v.Duplicate, v.Kills)
	result := "Every promise kept"
	if !v.Kept() {
		result = "BROKEN"
	}
	fmt.Fprintf(w, "%s: %d lost, %d doubled, %d gaps, %d violated\n", result, v.Lost, v.Doubled, v.Gaps, len(v.Violated))
}
