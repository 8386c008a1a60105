// Package scenario plays scenarios against a server and reports which promises it broke. Each file
// is one family of scenarios.
package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/internal/terminal"
)

// Config says what to run, and against what.
type Config struct {
	testbed.Options
	// Scenarios are the names of the scenarios to run. If there are none, all scenarios run.
	Scenarios []string
	// Server is the URL of a running server. If it is "", the run starts its own server.
	Server string
	// ServiceDID is the audience of the tokens. "" means the DID that the server names.
	ServiceDID string
	// PLCListen is where the PLC directory listens. "" means PLCListen with a running server, and
	// else a free port.
	PLCListen string
	// Binary is the mlsd to start. If it is "", the run finds or builds one.
	Binary string
	// Progress gets progress lines for a person. It may be nil.
	Progress io.Writer
}

// scenarioLimit ends a scenario against a server that answers nothing.
const scenarioLimit = 5 * time.Minute

// attackLimit is how much longer a scenario may take for each group that is attacked.
const attackLimit = 10 * time.Second

// Run plays the scenarios one after the other. It returns an error if a scenario could not be
// played. Broken promises are in the report.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	defer Catch(&err)
	chosen := Must(choose(c.Scenarios))
	lines := terminal.New(c.Progress)
	lines.Line("seed %d", c.Seed)
	to, stop := Must2(c.connect(ctx, lines))
	defer func() { err = errors.Join(err, stop()) }()
	report := &Report{Seed: c.Seed}
	for i, s := range chosen {
		lines.Now("[%d/%d] %s", i+1, len(chosen), s.Name)
		result := c.play(ctx, s, to, lines)
		if ctx.Err() != nil { // the findings of an interrupted scenario mean nothing
			lines.Clear()
			return report, context.Cause(ctx)
		}
		report.Results = append(report.Results, result)
		lines.Line("[%d/%d] %s", i+1, len(chosen), verdict(result))
	}
	lines.Clear()
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

// play runs one scenario in its own world and checks everything.
func (c *Config) play(ctx context.Context, s Scenario, to testbed.Target, lines *terminal.Progress) Result {
	result := Result{Scenario: s.Name}
	if s.Control && to.Server == nil {
		result.Skipped = "needs a server of its own"
		return result
	}
	if s.Agents && c.Agents == "" {
		result.Skipped = "needs --agents, a folder of other MLS libraries: clientsim/agents/README.md"
		return result
	}
	if s.Upgrade && len(c.Upgrade) == 0 {
		result.Skipped = "needs --upgrade, other versions of the server: cmd/mlsd/checkupgrade.sh"
		return result
	}
	if s.Cores && len(c.Cores) != 2 {
		result.Skipped = "needs --cores DATABASE,SERVER, and root"
		return result
	}
	if s.Standby {
		if _, err := testbed.StandbyPrograms(); err != nil {
			result.Skipped = "SKIPPED: " + err.Error()
			return result
		}
	}
	if s.Patroni {
		if c.Patroni == "" {
			result.Skipped = "needs --patroni, a network of its own, and Debian's packages: deploy/patroni/check.sh"
			return result
		}
		if err := testbed.PatroniPrograms(); err != nil {
			result.Skipped = "SKIPPED: " + err.Error()
			return result
		}
	}
	failovers := time.Duration(c.Failovers) * cmp.Or(s.Failover, failoverLimit)
	ctx, cancel := context.WithTimeout(ctx, scenarioLimit+c.For+failovers+time.Duration(c.Attacks)*attackLimit)
	defer cancel()
	start := time.Now()
	w := testbed.NewWorld(to, c.Options, salt(s.Name), func(now string) { lines.Now("%s: %s", s.Name, now) })
	s.Play(ctx, w)
	if to.Server != nil && len(w.Found()) > 0 {
		// After a failure, the next scenario gets a running server with the usual settings and no
		// armed failpoint.
		w.Attempt(func() { Check(w.Restart(ctx, nil)) })
	}
	result.Duration = time.Since(start)
	result.count(w.Stats, w.Found())
	result.Notes = w.Notes()
	return result
}

// Play runs the scenario in a world and checks everything. Then w.Found has the broken promises.
func (s Scenario) Play(ctx context.Context, w *testbed.World) {
	w.Attempt(func() { s.Run(ctx, w) })
	w.Check(ctx)
	w.Attempt(func() { Check(w.Close()) })
}

// salt gives each scenario its own random sequence. So a scenario draws the same numbers whether it
// runs alone or among others.
func salt(name string) uint64 {
	var sum uint64 = 14695981039346656037
	for _, b := range []byte(strings.ToLower(name)) {
		sum = (sum ^ uint64(b)) * 1099511628211
	}
	return sum
}
