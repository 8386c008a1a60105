package attack

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Result is the outcome of one attack.
type Result struct {
	Attack, Finding string
	// Honest has the figures of honest users before, during and after the attack, by operation.
	Honest  map[string][phases]Figures
	Answers map[int]int64 // answers to the attacker, by status; 0 means none
	Memory  int64         // peak of the server, in bytes
	Claims  []Claim
	Wrong   []string // empty if the server withstood
}

// Write writes the result as text.
func (r *Result) Write(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s (%s)\n", r.Attack, r.Finding)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tcalm\tsuccess\tp50\tp99\tmax\tattack\tsuccess\tp50\tp99\tmax\tafter\tsuccess\t")
	for _, name := range slices.Sorted(maps.Keys(r.Honest)) {
		f := r.Honest[name]
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t\n", name, f[calm], f[attacked], f[after].Count, percent(f[after].Success))
	}
	err := table.Flush()
	var answers []string
	for _, status := range slices.Sorted(maps.Keys(r.Answers)) {
		answers = append(answers, fmt.Sprintf("%d × %d", r.Answers[status], status))
	}
	fmt.Fprintf(&b, "answers to the attacker, by status (0: none): %s\nserver: peak memory %d MiB\n",
		strings.Join(answers, ", "), r.Memory>>20)
	for _, c := range r.Claims {
		fmt.Fprintf(&b, "%s: %s, at most %s\n", c.What, number(c.Value), number(c.Limit))
	}
	for _, w := range r.Wrong {
		fmt.Fprintf(&b, "FAILED %s\n", w)
	}
	if len(r.Wrong) == 0 {
		b.WriteString("withstood\n")
	}
	_, writeErr := io.WriteString(out, b.String())
	return errors.Join(err, writeErr)
}
