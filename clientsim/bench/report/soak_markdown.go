package report

import (
	"bytes"
	"fmt"
	"io"
	"time"
)

// WriteMarkdown writes the figures of the run.
func (s *Soak) WriteMarkdown(w io.Writer) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s, %s, %d messages a second, seed %d, %s, %s.\n\n", s.Began.UTC().Format(time.DateTime+" MST"),
		s.length().Round(time.Second),
		s.Rate, s.Seed, plural(s.Cores, "core"), s.Go)
	fmt.Fprintf(&out, "**%s.**\n\n", s.verdict())
	if s.End != nil {
		for _, text := range s.End.Broken {
			fmt.Fprintf(&out, "- broken: %s\n", text)
		}
		for _, note := range s.End.Notes {
			fmt.Fprintf(&out, "- %s\n", note)
		}
		fmt.Fprintf(&out, "- %d rounds of scenarios\n\n", s.End.Rounds)
	}
	fmt.Fprintf(&out, "| measure | second quarter | last quarter | allowed | which is | |\n|---|---|---|---|---|---|\n")
	small := 0
	for _, g := range s.Growths() {
		if g.Small && !g.Grew {
			small++
			continue
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | + %s | %s |\n", g.Name, g.Before, g.After, g.Allowed, g.Limit, g.Word())
	}
	if small > 0 {
		fmt.Fprintf(&out, "| %s, each below 1 MiB | | | | | steady |\n", plural(small, "more table"))
	}
	_, err := out.WriteTo(w)
	return err
}

// Word is the judgement in a word.
func (g Growth) Word() string {
	switch {
	case g.Short:
		return "too short"
	case g.Grew:
		return "GREW"
	}
	return "steady"
}
