package soak

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"mlsd/clientsim/load"
)

// Record is a run of clientsim soak, as its file of samples tells it.
type Record struct {
	Begin
	Samples []Sample
	End     *End // nil if the run was killed, or goes on
}

// Line is one line of a file of samples, JSON. The first line has Begin, and the last one End.
type Line struct {
	Begin  *Begin  `json:"begin,omitempty"`
	Sample *Sample `json:"sample,omitempty"`
	End    *End    `json:"end,omitempty"`
}

// Begin says how a run is set up.
type Begin struct {
	Began time.Time     `json:"began"`
	For   time.Duration `json:"for"`   // ns; how long the load is to go on
	Every time.Duration `json:"every"` // ns between two samples
	Rate  int           `json:"rate"`  // messages a second
	Seed  uint64        `json:"seed"`
	Cores int           `json:"cores"`
	Go    string        `json:"go"`
}

// Sample is what was measured at one moment.
type Sample struct {
	At float64 `json:"at"` // seconds since the beginning
	// Values are by name, such as "heap/node1". Sizes are in bytes, times in seconds. Counts of what
	// happened grow from the beginning of the run. A value that is not known is absent.
	Values map[string]float64 `json:"values"`
}

// End says how a run ended.
type End struct {
	Ended  time.Time `json:"ended"`
	Rounds int64     `json:"rounds"`
	Broken []string  `json:"broken"` // promises
	Notes  []string  `json:"notes"`
}

// Read reads a file of samples. The last line of a killed run may be cut off.
func Read(r io.Reader) (*Record, error) {
	s := &Record{}
	begun := false
	lines := bufio.NewReader(r)
	for n := 1; ; n++ {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("samples: %w", err)
		}
		var line Line
		if err := json.Unmarshal(text, &line); err != nil {
			return nil, fmt.Errorf("samples: line %d: %w", n, err)
		}
		switch {
		case line.Begin != nil:
			s.Begin, begun = *line.Begin, true
		case line.Sample != nil:
			s.Samples = append(s.Samples, *line.Sample)
		case line.End != nil:
			s.End = line.End
		}
	}
	if !begun {
		return nil, errors.New("samples: no line says how the run began")
	}
	return s, nil
}

// length returns how long the run took up to its last sample.
func (s *Record) length() time.Duration {
	if len(s.Samples) == 0 {
		return 0
	}
	return time.Duration(s.Samples[len(s.Samples)-1].At * float64(time.Second))
}

// point is the value of a measure at a time, in seconds.
type point struct{ x, y float64 }

// measure is something that each sample says. ok is false if the sample does not say it. before is
// the sample before, or nil.
type measure func(now, before *Sample) (value float64, ok bool)

// points returns a measure of each sample, over seconds.
func (s *Record) points(of measure) (found []point) {
	for i := range s.Samples {
		var before *Sample
		if i > 0 {
			before = &s.Samples[i-1]
		}
		if v, ok := of(&s.Samples[i], before); ok && !math.IsNaN(v) && !math.IsInf(v, 0) {
			found = append(found, point{s.Samples[i].At, v})
		}
	}
	return found
}

// value is the value with a name.
func value(name string) measure {
	return func(now, _ *Sample) (float64, bool) {
		v, ok := now.Values[name]
		return v, ok
	}
}

// total is the sum of values. One that is absent counts 0.
func total(names ...string) measure {
	return func(now, _ *Sample) (sum float64, ok bool) {
		for _, name := range names {
			v, there := now.Values[name]
			sum, ok = sum+v, ok || there
		}
		return sum, ok
	}
}

// perSecond is by how much a value grows in a second.
func perSecond(of measure) measure {
	return func(now, before *Sample) (float64, bool) {
		if before == nil {
			return 0, false
		}
		a, there := of(before, nil)
		b, here := of(now, nil)
		return (b - a) / (now.At - before.At), there && here && now.At > before.At
	}
}

// quotient is one measure divided by another.
func quotient(of, by measure) measure {
	return func(now, before *Sample) (float64, bool) {
		a, ok := of(now, before)
		b, there := by(now, before)
		return a / b, ok && there && b != 0
	}
}

// WriteMarkdown writes the figures of the run.
func (s *Record) WriteMarkdown(w io.Writer) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s, %s, %d messages a second, seed %d, %s, %s.\n\n", s.Began.UTC().Format(time.DateTime+" MST"),
		s.length().Round(time.Second),
		s.Rate, s.Seed, load.Plural(s.Cores, "core"), s.Go)
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
		fmt.Fprintf(&out, "| %s, each below 1 MiB | | | | | steady |\n", load.Plural(small, "more table"))
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
