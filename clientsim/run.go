package clientsim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Config says what to run, and against what.
type Config struct {
	Options
	// Scenarios are names; none means all.
	Scenarios []string
	// Server is the URL of a running server, or "" for one of our own.
	Server string
	// ServiceDID is what tokens are made out to. A server of our own is told;
	// of another it has to be known.
	ServiceDID string
	// PLCListen is where the PLC directory listens.
	PLCListen string
	// Binary is the mlsd to start, or "" to look for one or build it.
	Binary string
	// Progress is where a person looks, or nil.
	Progress io.Writer
}

// DefaultServiceDID is what a server with default settings calls itself.
const DefaultServiceDID = "did:web:localhost%3A8080"

// scenarioLimit bounds one scenario, so that a server that answers nothing
// ends a run with a report and not never.
const scenarioLimit = 5 * time.Minute

// Run plays the scenarios one after the other and reports. The error is for
// what kept a scenario from being played at all; broken promises are in the
// report.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	chosen, err := choose(c.Scenarios)
	if err != nil {
		return nil, err
	}
	progress := NewProgress(c.Progress)
	progress.Line("seed %d", c.Seed)
	dir, err := NewDirectory(c.PLCListen)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close(context.WithoutCancel(ctx))) }()
	to, stop, err := c.reach(ctx, dir, progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	report := &Report{Seed: c.Seed}
	for i, s := range chosen {
		progress.Now("[%d/%d] %s", i+1, len(chosen), s.Name)
		result := c.play(ctx, s, to, progress)
		if ctx.Err() != nil { // what an interrupted scenario found is worth nothing
			progress.Clear()
			return report, context.Cause(ctx)
		}
		report.Results = append(report.Results, result)
		progress.Line("[%d/%d] %s", i+1, len(chosen), verdict(result))
	}
	progress.Clear()
	return report, nil
}

func choose(names []string) ([]Scenario, error) {
	all := Scenarios()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []Scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no scenario %q; --list names them", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func verdict(r Result) string {
	switch {
	case r.Skipped != "":
		return r.Scenario + ": skipped: " + r.Skipped
	case len(r.Violations) > 0:
		return fmt.Sprintf("%s: %d broken promises, the first: %s", r.Scenario, len(r.Violations), r.Violations[0])
	}
	return fmt.Sprintf("%s: kept, in %s", r.Scenario, r.Duration.Round(time.Millisecond))
}

// play runs one scenario in a world of its own and has everything checked.
func (c *Config) play(ctx context.Context, s Scenario, to target, progress *Progress) Result {
	result := Result{Scenario: s.Name}
	if s.Control && to.server == nil {
		result.Skipped = "needs a server of its own"
		return result
	}
	ctx, cancel := context.WithTimeout(ctx, scenarioLimit+c.For)
	defer cancel()
	start := time.Now()
	w := newWorld(to, c.Options, salt(s.Name), func(now string) { progress.Now("%s: %s", s.Name, now) })
	if err := s.Run(ctx, w); err != nil {
		w.Broken("%v", err)
	}
	w.Check(ctx)
	if to.server != nil && len(w.Found()) > 0 {
		// Whatever went wrong, the next scenario has a living server with the
		// usual settings and no failpoint armed.
		if err := w.Restart(ctx, nil); err != nil {
			w.Broken("%v", err)
		}
	}
	result.Duration = time.Since(start)
	result.count(w.Stats, w.Found())
	result.Notes = w.Notes()
	return result
}

// salt gives each scenario a sequence of its own, so that one run alone draws
// what it drew among the others.
func salt(name string) uint64 {
	var sum uint64 = 14695981039346656037
	for _, b := range []byte(strings.ToLower(name)) {
		sum = (sum ^ uint64(b)) * 1099511628211
	}
	return sum
}
