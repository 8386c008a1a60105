package attack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// Config says which attacks run.
type Config struct {
	Names    []string // names of attacks or findings, "all", or "together"
	Binary   string   // if "", a server is found or built
	Spans    Spans
	Rate     float64 // small messages of honest users per second; 0 means usualRate or togetherRate
	Leaves   int     // number of leaves of a costly GroupInfo
	Bounds   Bounds
	Progress func(string)
	Done     func(*Result) error // called with each result
}

const (
	usualRate    = 20
	togetherRate = 500
	// togetherSuccess is the least share of honest successes while all attacks run.
	togetherSuccess = 0.999
)

// Default returns the default configuration.
func Default() Config {
	return Config{
		Spans:  Spans{Warm: 2 * time.Second, Calm: 10 * time.Second, Attack: 20 * time.Second, After: 5 * time.Second},
		Leaves: 4800,
		Bounds: Bounds{Success: 1, Times: 3, Floor: 50, Memory: 2 << 30},
	}
}

// Run runs the attacks, one after another, each on a new server.
func Run(ctx context.Context, c Config) (results []*Result, err error) {
	defer Catch(&err)
	attacks := Must(c.attacks())
	e := Must(testbed.NewEnvironment(ctx, "127.0.0.1:0", testbed.Binary{Path: c.Binary}))
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
	e.Defaults = true
	for i, a := range attacks {
		c.Progress(fmt.Sprintf("%s (%s)", a.Name, a.Finding))
		result, err := c.one(ctx, e, a, fmt.Sprintf("attack%d", i+1))
		if ctx.Err() != nil {
			return results, errors.Join(context.Cause(ctx), err)
		}
		if err != nil { // the other attacks still run
			result = &Result{Attack: a.Name, Finding: a.Finding, Wrong: []string{fmt.Sprintf("it could not run: %v", err)}}
		}
		results = append(results, result)
		Check(c.Done(result))
	}
	return results, nil
}

// attacks returns the attacks that the names select. It refuses a configuration that cannot run.
func (c *Config) attacks() (all []Attack, err error) {
	defer Catch(&err)
	if c.Spans.Calm <= 0 || c.Spans.Attack <= 0 || c.Spans.Warm < 0 || c.Spans.After < 0 || c.Rate < 0 || c.Leaves < 1 {
		return nil, errors.New("times, rate and leaves must be positive")
	}
	for _, name := range c.Names {
		all = append(all, Must(Selection(name))...)
	}
	if len(all) == 0 {
		return nil, errors.New("no attack is named; --list names them")
	}
	return all, nil
}

// one runs one attack on a server with its default limits. The server's files get the given name.
func (c *Config) one(ctx context.Context, e *testbed.Environment, a Attack, name string) (result *Result, err error) {
	defer Catch(&err)
	s := e.Server(name)
	Check(s.Start(ctx, map[string]string{"MLSD_SERVICES": "all"})) // attacks come from services that nobody has chosen
	closers := []func() error{s.Kill}                              // an attacked server may still be busy
	defer func() {
		for _, end := range slices.Backward(closers) {
			err = errors.Join(err, end())
		}
	}()
	bounds, rate := c.Bounds, c.Rate
	if rate == 0 {
		rate = usualRate
	}
	if a.Name == togetherName {
		bounds.Success = min(bounds.Success, togetherSuccess)
		if c.Rate == 0 {
			rate = togetherRate
		}
	}
	t := &Target{
		Base: s.URL(), Addr: s.URL()[len("http://"):], Audience: xrpc.DefaultServiceDID, Leaves: c.Leaves,
		env: e, answers: &answers{byStatus: map[int]int64{}}, closers: &closers,
	}
	var prepared *Prepared
	Check(errs.Wrap(Attempt(func() {
		t.honest = newHonest(t, rate)
		t.honest.prepare(ctx)
		prepared = a.Prepare(ctx, t)
	}), "prepare"))
	clear(t.answers.byStatus) // what happened during the preparation does not belong to the attack
	m := newMeter()
	Check(measure(ctx, m, append(t.honest.operations(rate), t.Bystanders...), c.Spans, prepared.Run))
	result = &Result{Attack: a.Name, Finding: a.Finding, Honest: m.figures(), Answers: t.answers.byStatus,
		Memory: Must(s.PeakMemory())}
	if prepared.Judge != nil {
		result.Claims = prepared.Judge()
	}
	result.Wrong = result.verdict(bounds)
	return result, nil
}

// Bounds decide whether honest users were served.
type Bounds struct {
	Success float64 // least share of honest successes during the attack, 0…1
	Times   float64 // greatest p99 during the attack, as a multiple of the calm p99
	// Floor is the least calm p99 that counts, in milliseconds. On a machine that does other work,
	// multiples of a smaller p99 mean nothing.
	Floor  float64
	Memory int64 // greatest memory of the server, in bytes
}

// verdict returns what was not as required, one line each.
func (r *Result) verdict(b Bounds) (wrong []string) {
	report := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(r.Honest)) {
		before, during, later := r.Honest[name][calm], r.Honest[name][attacked], r.Honest[name][after]
		switch limit := b.Times * max(before.P99, b.Floor); {
		case before.Count == 0 || during.Count == 0:
			report("%s: not measured", name)
			continue
		case before.Success < b.Success:
			report("%s: success %s before the attack: this says nothing about it (%s)", name, percent(before.Success),
				before.FirstErr)
		case during.Success < b.Success:
			report("%s: success %s during the attack (%s)", name, percent(during.Success), during.FirstErr)
		case during.P99 > limit:
			report("%s: p99 %.0f ms during the attack, at most %.0f ms", name, during.P99, limit)
		}
		if later.Count > 0 && later.Success < b.Success {
			report("%s: success %s after the attack (%s)", name, percent(later.Success), later.FirstErr)
		}
	}
	if r.Memory > b.Memory {
		report("memory: %d MiB, at most %d MiB", r.Memory>>20, b.Memory>>20)
	}
	if len(r.Answers) == 0 {
		report("the attack did nothing")
	}
	for _, c := range r.Claims {
		if !(c.Value <= c.Limit) { // NaN is no success either
			report("%s: %s, at most %s", c.What, number(c.Value), number(c.Limit))
		}
	}
	return wrong
}

// percent formats a share. It never rounds up to 100%.
func percent(share float64) string {
	if share == 1 || share == 0 {
		return strconv.Itoa(int(share)*100) + "%"
	}
	return fmt.Sprintf("%.2f%%", min(share*100, 99.99))
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
