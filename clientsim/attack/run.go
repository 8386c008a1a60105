package attack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// Config says which attacks run against which servers.
type Config struct {
	Names    []string         // names of attacks or findings, "all", or "together"
	Command  string           // for the report
	Binaries []testbed.Binary // if empty, a binary is found or built
	Spans    Spans
	Rate     float64 // small messages of honest users per second; 0 means usualRate or togetherRate
	Leaves   int     // number of leaves of a costly GroupInfo
	Fill     int64   // how many bytes the attacks on the disk send before the calm phase
	Bounds   Bounds
	Progress func(string)
	Done     func(*Result) error // called with each result
}

const (
	usualRate    = 20
	togetherRate = 500
	togetherName = "together"
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

// Run runs the attacks, one after another, each on every server.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	defer Catch(&err)
	Check(c.Check())
	attacks := Must(c.attacks())
	e := Must(testbed.NewEnvironment(ctx, "127.0.0.1:0", c.Binaries...))
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
	Check(e.StartPostgres(ctx, nil))
	report := &Report{Command: c.Command, Bounds: c.Bounds}
	for _, a := range attacks {
		for _, binary := range e.Binaries {
			c.say("%s (%s) %s", a.Name, a.Finding, binary.Name)
			result, err := c.one(ctx, e, a, binary, fmt.Sprintf("attack%d", len(report.Results)+1))
			if ctx.Err() != nil {
				return report, errors.Join(context.Cause(ctx), err)
			}
			if err != nil { // the other attacks still run
				result = &Result{Attack: a.Name, Finding: a.Finding, Server: binary.Name,
					Wrong: []string{fmt.Sprintf("it could not run: %v", err)}}
			}
			report.Results = append(report.Results, result)
			if err := c.Done(result); err != nil {
				return report, err
			}
		}
	}
	return report, nil
}

// Check refuses a configuration that cannot run.
func (c *Config) Check() (err error) {
	defer Catch(&err)
	if c.Spans.Calm <= 0 || c.Spans.Attack <= 0 || c.Spans.Warm < 0 || c.Spans.After < 0 || c.Rate < 0 || c.Leaves < 1 ||
		c.Fill < 0 {
		return errors.New("times, rate and leaves must be positive")
	}
	Check(testbed.CheckBinaries(c.Binaries))
	_, err = c.attacks()
	return err
}

func (c *Config) say(format string, args ...any) {
	if c.Progress != nil {
		c.Progress(fmt.Sprintf(format, args...))
	}
}

func (c *Config) attacks() (all []Attack, err error) {
	defer Catch(&err)
	for _, name := range c.Names {
		if name == togetherName {
			all = append(all, together(Attacks()))
			continue
		}
		some := Must(Selection(name))
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, errors.New("no attack is named; --list names them")
	}
	return all, nil
}

// one runs one attack on one server. The server's database gets the given name.
func (c *Config) one(ctx context.Context, e *testbed.Environment, a Attack, binary testbed.Binary,
	name string) (result *Result, err error) {
	defer Catch(&err)
	s := Must(start(ctx, e, binary.Path, name))
	closers := []func() error{func() error { return s.stop(ctx) }}
	defer func() {
		for _, end := range slices.Backward(closers) {
			err = errors.Join(err, end())
		}
	}()
	bounds, rate := c.Bounds, c.Rate
	if a.Name == togetherName {
		bounds.Success = min(bounds.Success, togetherSuccess)
	}
	if rate == 0 {
		rate = usualRate
		if a.Name == togetherName {
			rate = togetherRate
		}
	}
	t := &Target{
		Base: s.URL(), Addr: s.URL()[len("http://"):], Admin: s.AdminURL(), Audience: xrpc.DefaultServiceDID,
		Leaves: c.Leaves, Fill: c.Fill,
		env: e, answers: &answers{byStatus: map[string]int64{}}, closers: &closers,
	}
	var prepared *Prepared
	Check(errs.Wrap(Attempt(func() {
		t.honest = newHonest(t, rate)
		t.honest.prepare(ctx)
		for _, person := range t.honest.people {
			t.Victims = append(t.Victims, person.DID)
		}
		prepared = a.Prepare(ctx, t)
	}), "prepare"))
	// What happened during the preparation does not belong to the attack.
	t.answers.mu.Lock()
	t.answers.attempts = 0
	clear(t.answers.byStatus)
	t.answers.mu.Unlock()
	m := newMeter()
	var effects effectsMeter
	ops := append(t.honest.operations(rate), t.Bystanders...)
	Check(measure(ctx, m, ops, c.Spans, prepared.Run,
		func(phase int) error { return effects.enter(ctx, s, phase) }))
	result = &Result{
		Attack: a.Name, Finding: a.Finding, Server: binary.Name, Honest: m.figures(), Effects: effects.Effects,
		Attempts: t.answers.attempts, Answers: maps.Clone(t.answers.byStatus),
		Memory: Must(s.PeakMemory()),
	}
	if prepared.Judge != nil {
		result.Claims = prepared.Judge(ctx, effects.Effects)
	}
	result.Wrong = result.verdict(bounds)
	return result, nil
}

// effectsMeter measures what the attack changes, in addition to what honest users change.
type effectsMeter struct {
	Effects
	since  time.Time
	stored int64
	log    testbed.LogSize
}

// enter ends a phase and begins the next one.
func (m *effectsMeter) enter(ctx context.Context, s *server, phase int) error {
	stored, err := s.stored(ctx)
	now, log := time.Now(), s.LogSize()
	took, grew := now.Sub(m.since).Seconds(), stored-m.stored
	lines, bytes := log.Lines-m.log.Lines, log.Bytes-m.log.Bytes
	m.since, m.stored, m.log = now, stored, log
	switch phase {
	case attacked:
		m.CalmStored, m.CalmLogLines, m.CalmLogBytes = float64(grew)/took, float64(lines)/took, float64(bytes)/took
	case after:
		m.Seconds, m.Stored, m.LogLines, m.LogBytes = took, grew, lines, bytes
	}
	return err
}

// server is an mlsd with its own database, on the PostgreSQL of an environment.
type server struct {
	*testbed.Proc
	env      *testbed.Environment
	name     string // name of the database
	database string // URL of the database
}

// start starts a binary with its default limits and a new database.
func start(ctx context.Context, e *testbed.Environment, binary, name string) (_ *server, err error) {
	defer Catch(&err)
	Check(e.Execute(ctx, "CREATE DATABASE "+name))
	address := Must(url.Parse(e.Postgres.URL()))
	address.Path = "/" + name
	s := &server{Proc: e.Server(name), env: e, name: name, database: address.String()}
	s.UseBinary(binary)
	s.UseDefaults()
	return s, s.Start(ctx, map[string]string{"MLSD_DATABASE_URL": s.database})
}

// stop kills the server and drops its database, because an attacked server may still be busy.
func (s *server) stop(ctx context.Context) error {
	return errors.Join(s.Kill(),
		s.env.Execute(context.WithoutCancel(ctx), fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", s.name)))
}

// stored returns the size of the database in bytes.
func (s *server) stored(ctx context.Context) (n int64, err error) {
	err = testbed.Scan(ctx, s.database, `SELECT pg_database_size(current_database())`, nil, &n)
	return n, err
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
func (r *Result) verdict(b Bounds) []string {
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(r.Honest)) {
		f := r.Honest[name]
		before, during, later := f[calm], f[attacked], f[after]
		switch limit := b.Times * max(before.P99, b.Floor); {
		case before.Count == 0 || during.Count == 0:
			wrong = append(wrong, name+": not measured")
			continue
		case before.Success < b.Success:
			wrong = append(wrong, fmt.Sprintf("%s: success %s before the attack: this says nothing about it (%s)", name,
				percent(before.Success), before.FirstErr))
		case during.Success < b.Success:
			wrong = append(wrong, fmt.Sprintf("%s: success %s during the attack (%s)", name, percent(during.Success),
				during.FirstErr))
		case during.P99 > limit:
			wrong = append(wrong, fmt.Sprintf("%s: p99 %.0f ms during the attack, at most %.0f ms", name, during.P99, limit))
		}
		if later.Count > 0 && later.Success < b.Success {
			wrong = append(wrong, fmt.Sprintf("%s: success %s after the attack (%s)", name, percent(later.Success),
				later.FirstErr))
		}
	}
	if r.Memory > b.Memory {
		wrong = append(wrong, fmt.Sprintf("memory: %s, at most %s", mebibytes(r.Memory), mebibytes(b.Memory)))
	}
	if r.Attempts == 0 {
		wrong = append(wrong, "the attack did nothing")
	}
	for _, c := range r.Claims {
		if !c.Kept() {
			wrong = append(wrong, fmt.Sprintf("%s: %s, at most %s", c.What, number(c.Value), number(c.Limit)))
		}
	}
	return wrong
}
