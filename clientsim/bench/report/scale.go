package report

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"mlsd/clientsim/load"
)

// Scale is what a run says whose servers and database had shares of the processors.
type Scale struct {
	Standby bool `json:"standby,omitempty"` // servers read from one
	// Shares are those of the database first, then of its standby, then of each server that ran.
	Shares   []Share         `json:"shares"`
	Events   *load.Operation `json:"events,omitempty"`   // that subscribers got; the latency is from createdAt to the arrival of some
	WAL      int64           `json:"wal"`                // bytes
	Batch    float64         `json:"batch"`              // messages of one transaction, on average
	Idle     float64         `json:"idle"`               // part of all processor time that nobody used
	Resident int64           `json:"resident,omitempty"` // memory of the first server before the run, in bytes
}

// Share is a share of the processors, and how much of it was used.
type Share struct {
	Name      string        `json:"name"`
	Cores     float64       `json:"cores"`
	Used      time.Duration `json:"used"`
	Periods   int64         `json:"periods"`
	Throttled int64         `json:"throttled"` // periods at whose end a process had to wait
}

// Names of shares. Those of the servers are others.
const (
	ShareDatabase = "database"
	ShareStandby  = "standby"
)

// leastIdle is the part of the processor time that nobody used if the shares alone limit the rates.
const leastIdle = 0.05

// arranged is what was measured of one arrangement: its runs by what they do.
type arranged struct {
	name  string // such as 4 nodes
	nodes int
	idle  int // subscribers, if these vary and not the nodes
	runs  map[string][]*Run
}

// What a run does stands before the name of its arrangement.
const (
	sends = "send"
	reads = "read"
	halfs = "half"
)

// arrangements returns all arrangements, in the order in which they were measured first.
func (r *Report) arrangements() (all []*arranged) {
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Scale == nil {
			continue
		}
		does, name, ok := strings.Cut(run.Variant, ", ")
		if !ok {
			does, name = halfs, run.Variant
		}
		at := slices.IndexFunc(all, func(s *arranged) bool { return s.name == name })
		if at < 0 {
			s := &arranged{name: name, nodes: run.Load.Servers, runs: map[string][]*Run{}}
			if !ok {
				s.idle = run.Load.Subscribers
			}
			at, all = len(all), append(all, s)
		}
		all[at].runs[does] = append(all[at].runs[does], run)
	}
	return all
}

// rate is the median of the turns.
func (s *arranged) rate(does string) float64 {
	var rates []float64
	for _, run := range s.runs[does] {
		rates = append(rates, run.rate(all))
	}
	return median(rates)
}

// events is how many events arrived per second, in the median of the turns.
func (s *arranged) events(does string) float64 {
	var rates []float64
	for _, run := range s.runs[does] {
		if run.Scale.Events != nil {
			rates = append(rates, float64(run.Scale.Events.Done)/run.Took.Seconds())
		}
	}
	return median(rates)
}

// answers are the latencies of all requests, and arrivals those of events.
func (s *arranged) answers(does string) *load.Latency {
	return (&group{runs: s.runs[does]}).latency(all)
}

func (s *arranged) arrivals(does string) *load.Latency {
	merged := load.NewLatency()
	for _, run := range s.runs[does] {
		if run.Scale.Events != nil {
			merged.Merge(run.Scale.Events.Latency.Histogram)
		}
	}
	return merged
}

// part is what was used of the shares of some.
type part struct {
	used      float64 // of the share; 1: all of it
	cores     float64 // used
	perDone   float64 // µs for each request done
	throttled float64 // part of the periods
}

// share sums the shares that are chosen by name.
func (s *arranged) share(does string, chosen func(name string) bool) part {
	var used, had time.Duration
	var took float64
	var periods, throttled, done int64
	for _, run := range s.runs[does] {
		for _, share := range run.Scale.Shares {
			if chosen(share.Name) {
				used += share.Used
				had += time.Duration(share.Cores * float64(run.Took))
				periods, throttled = periods+share.Periods, throttled+share.Throttled
			}
		}
		took, done = took+run.Took.Seconds(), done+run.done(all)
	}
	return part{
		used: used.Seconds() / had.Seconds(), cores: used.Seconds() / took, perDone: micros(used) / float64(done),
		throttled: float64(throttled) / float64(periods),
	}
}

func isDatabase(name string) bool { return name == ShareDatabase }
func isStandby(name string) bool  { return name == ShareStandby }
func isNode(name string) bool     { return !isDatabase(name) && !isStandby(name) }

// of is the median of a figure over the turns.
func (s *arranged) of(does string, figure func(*Run) float64) float64 {
	var values []float64
	for _, run := range s.runs[does] {
		values = append(values, figure(run))
	}
	return median(values)
}

func perMessage(run *Run) float64 { return float64(run.Scale.WAL) / float64(run.done(all)) }
func batchOf(run *Run) float64    { return run.Scale.Batch }
func residentOf(run *Run) float64 { return float64(run.Scale.Resident) / mib }

// full reports whether the machine had no time left in some run. Then its figures mean nothing.
func (s *arranged) full() bool {
	for _, runs := range s.runs {
		if slices.ContainsFunc(runs, func(run *Run) bool { return run.Scale.Idle < leastIdle }) {
			return true
		}
	}
	return false
}

func percentText(v float64) string {
	if math.IsNaN(v) {
		return none
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}

// WriteScale writes the figures as tables in Markdown.
func (r *Report) WriteScale(w io.Writer) error {
	all := r.arrangements()
	if len(all) == 0 {
		return errors.New("nothing was measured with shares of the processors")
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s, %s; PostgreSQL %s, %s; %s.\n\n", r.Machine.text(), r.Began.UTC().Format(time.DateOnly), r.Database.Version, r.Database.durable(), r.loadText())
	if all[0].runs[sends] == nil {
		writeIdle(&text, all)
	} else {
		writeNodes(&text, all)
	}
	for _, s := range all {
		if s.full() {
			fmt.Fprintf(&text, "\n**The machine was full: the figures of %s mean nothing.**\n", s.name)
		}
	}
	if r.Verdict != nil {
		fmt.Fprintf(&text, "\n%s. %s.\n", r.Verdict.text(), r.Verdict.counts())
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func writeNodes(w io.Writer, all []*arranged) {
	fmt.Fprint(w, "| | messages/s | ÷ first | events/s | pages/s | ÷ first | half the rate: answer p50, p99 | event p50, p99 |\n|---|---|---|---|---|---|---|---|\n")
	for _, s := range all {
		answers, arrivals := s.answers(halfs), s.arrivals(halfs)
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s, %s | %s, %s |\n", s.name,
			significant(s.rate(sends)), significant(s.rate(sends)/all[0].rate(sends)), significant(s.events(sends)),
			significant(s.rate(reads)), significant(s.rate(reads)/all[0].rate(reads)),
			quantile(answers, 50), quantile(answers, 99), quantile(arrivals, 50), quantile(arrivals, 99))
	}
	fmt.Fprint(w, "\n| messages as fast as possible | database: of its share, throttled | servers: of their shares, throttled | database, servers: µs per message "+
		"| messages per transaction | WAL per message |\n|---|---|---|---|---|---|\n")
	for _, s := range all {
		database, nodes := s.share(sends, isDatabase), s.share(sends, isNode)
		fmt.Fprintf(w, "| %s | %s, %s | %s, %s | %s, %s | %s | %s B |\n", s.name, percentText(database.used), percentText(database.throttled),
			percentText(nodes.used), percentText(nodes.throttled), significant(database.perDone), significant(nodes.perDone),
			significant(s.of(sends, batchOf)), significant(s.of(sends, perMessage)))
	}
	fmt.Fprint(w, "\n| pages as fast as possible | database: of its share | standby: of its share | servers: of their shares | database, servers: µs per page |\n"+
		"|---|---|---|---|---|\n")
	for _, s := range all {
		database, standby, nodes := s.share(reads, isDatabase), s.share(reads, isStandby), s.share(reads, isNode)
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s, %s |\n", s.name, percentText(database.used), percentText(standby.used), percentText(nodes.used),
			significant(database.perDone), significant(nodes.perDone))
	}
}

func writeIdle(w io.Writer, all []*arranged) {
	fmt.Fprint(w, "| idle subscribers | memory of one server | of a subscriber | servers: of a core | database: of a core | answer p50, p99 | event p50, p99 |\n|---|---|---|---|---|---|---|\n")
	base := all[0]
	for _, s := range all {
		each := none
		if n := s.idle - base.idle; n > 0 {
			each = significant((s.of(halfs, residentOf)-base.of(halfs, residentOf))*1024*float64(s.nodes)/float64(n)) + " KiB"
		}
		answers, arrivals := s.answers(halfs), s.arrivals(halfs)
		fmt.Fprintf(w, "| %s | %s MiB | %s | %s | %s | %s, %s | %s, %s |\n", thousands(int64(s.idle)), significant(s.of(halfs, residentOf)), each,
			percentText(s.share(halfs, isNode).cores), percentText(s.share(halfs, isDatabase).cores),
			quantile(answers, 50), quantile(answers, 99), quantile(arrivals, 50), quantile(arrivals, 99))
	}
}
