package torture

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"time"

	"mlsd/clientsim/history"
	"mlsd/clientsim/traffic"
)

// Report says what a run did and what it found.
type Report struct {
	Seed       uint64
	For        time.Duration
	Plan       []Step
	Skipped    map[Kind]string // faults that cannot happen on this machine, and why
	Faults     map[string]int  // faults that happened, by name
	Recoveries int64           // recoveries of PostgreSQL after a crash
	traffic.Counts
	traffic.Judgement
	Events     int64 // events that came to subscribers
	Notes      []string
	Violations []history.Violation
}

// count counts the violations of a kind.
func (r *Report) count(kind history.ViolationKind) (n int) {
	for _, v := range r.Violations {
		if v.Kind == kind {
			n++
		}
	}
	return n
}

func (r *Report) faults() (n int) {
	for _, times := range r.Faults {
		n += times
	}
	return n
}

// maxShown is how many sorts of violations a report shows.
const maxShown = 20

// longestNote is how much of a note a report shows, in characters. The log of a server is a note.
const longestNote = 4000

// Write writes the report for a person.
func (r *Report) Write(out io.Writer) error {
	p := &printer{out: out}
	p.line("seed %d, %s", r.Seed, r.For.Round(time.Millisecond))
	for _, note := range r.Notes {
		p.line("note: %.*s", longestNote, note)
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Skipped)) {
		p.line("SKIPPED %s: %s", kind, r.Skipped[kind])
	}
	p.line("%d faults, %d recoveries of PostgreSQL from a crash", r.faults(), r.Recoveries)
	for _, name := range sorted(r.Faults) {
		p.line("  %5d  %s", r.Faults[name], name)
	}
	p.line("%d times a member read a log, and it fitted the signed heads", r.Verified)
	p.line("%d operations, %d of them refused; %d requests: %d times to all nodes at once, %d without a verdict",
		r.Operations, r.Refused, r.Attempts, r.Tripled, r.Unknown)
	for _, name := range sorted(r.Failures) {
		p.line("  %5d  %s", r.Failures[name], name)
	}
	p.line("%d entries of logs acknowledged, %d events delivered, %d requests asked again in the end", r.Entries, r.Events,
		r.Replayed)
	if r.Unmarked > 0 {
		p.line("%d answers to concurrent repetitions were not marked as replays", r.Unmarked)
	}
	for _, kind := range sorted(r.Histories) {
		p.line("  %5d operations judged: %s", r.Histories[kind], kind)
	}
	if r.Undecided > 0 {
		p.line("  %d objects undecided: the search for an order took too long", r.Undecided)
	}
	p.line("lost %d, doubled %d, broken %d", r.count(history.Lost), r.count(history.Duplicated), r.count(history.Broken))
	r.writeViolations(p)
	return p.err
}

// varying matches what makes two violations of one sort differ: DIDs, ids, digests and numbers.
var varying = regexp.MustCompile(`did:[\w:.%-]+|\b[0-9a-f]{4,}(-[0-9a-f]{4,})*\b|\d+`)

// writeViolations writes one violation of each sort, with the number of violations of that sort. So
// a frequent sort does not hide another one.
func (r *Report) writeViolations(p *printer) {
	var sorts []string
	like := map[string][]history.Violation{}
	for _, v := range r.Violations {
		sort := varying.ReplaceAllString(v.String(), "…")
		if like[sort] == nil {
			sorts = append(sorts, sort)
		}
		like[sort] = append(like[sort], v)
	}
	for _, sort := range sorts[:min(len(sorts), maxShown)] {
		p.line("  %s", like[sort][0])
		if more := len(like[sort]) - 1; more > 0 {
			p.line("    and %d more like this", more)
		}
	}
	if more := len(sorts) - maxShown; more > 0 {
		p.line("  and %d more sorts", more)
	}
}

// printer writes lines until one fails.
type printer struct {
	out io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	_, err := fmt.Fprintf(p.out, format+"\n", args...)
	p.err = errors.Join(p.err, err)
}

// sorted returns the keys of a map in order.
func sorted(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
