// Package bench measures mlsd under load, over HTTP, as clients see it. Afterwards it checks that
// every acknowledged message is stored, because a rate with lost messages means nothing.
//
//	prepare: servers, accounts, convos, ciphertexts
//	by turns, for each variant: sign tokens, load (warm-up, then the window that counts)
//	verify: read every convo, ask the server's own checker
//
// The load shares its machine with the server. So the load has its own cheap HTTP client (wire),
// and encrypts and signs before the measurement.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/bench/report"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Config says what to measure, and against what.
type Config struct {
	Scenario string
	Seed     uint64
	Command  string // the command line that repeats this run

	InFlight int           // number of unanswered requests; in an open loop, the largest number
	Rate     float64       // requests started per second, answered or not; 0 means a closed loop
	Turns    int           // how many turns each variant has
	For      time.Duration // length of a turn
	Warm     time.Duration // time before each turn that is not counted
	// WarmStart is the shortest Warm for a server that has just started, with empty caches.
	WarmStart time.Duration
	// Auth lists how senders authenticate: service, session or both. Only some scenarios support
	// sessions. With both, each server is measured twice.
	Auth     []string
	Messages int64 // acknowledged messages, with the warm-up, that end the run; 0 means that Turns ends it

	Convos      int // 0 means the scenario's default
	Members     int // members of each convo; 0 means the scenario's default
	Senders     int // accounts that send
	Subscribers int // 0 means the scenario's default
	Servers     int // mlsd processes
	Body        int // size of a ciphertext, in bytes
	Joins       int // devices that join at once in a storm, or claims that are made at once

	// Nodes and Standby are for scale: numbers of servers, and whether the servers read from a
	// standby. Without Nodes, the scenario's default applies. InFlight is then the number for each
	// server.
	Nodes   []int
	Standby []bool

	// Faults makes the benchmark drop answers, send requests twice at the same time, and kill a
	// server every KillEvery.
	Faults    bool
	KillEvery time.Duration

	// Database is the URL of a PostgreSQL. If it is "", the benchmark starts one.
	Database string
	// Binaries are the mlsd binaries to start. If the list is empty, the benchmark finds or builds a
	// binary. Binaries with names take turns as variants.
	Binaries []testbed.Binary
	// Profile is the file for a processor profile of the first server, or "".
	Profile string
	// Progress is called with lines that say what is happening. It may be nil.
	Progress func(string)
}

// compares reports whether binaries take turns.
func (c *Config) compares() bool { return len(c.Binaries) > 0 && c.Binaries[0].Name != "" }

// Default returns the default configuration.
func Default() Config {
	return Config{
		InFlight: 128, Turns: 5, For: 4 * time.Second, Warm: 500 * time.Millisecond, WarmStart: 2 * time.Second,
		Auth: []string{AuthService}, Senders: 64, Servers: 1, Body: 1 << 10, Joins: 1000,
		KillEvery: time.Minute,
		Standby:   []bool{false},
	}
}

// Ways in which senders authenticate.
const (
	AuthService = "service" // a new service-auth token for each request
	AuthSession = "session" // one session per sender, bought with a service-auth token
)

// Lower and upper bounds. Greater values would only exhaust the machine.
const (
	maxInFlight    = 4096
	maxServers     = 16
	maxConvos      = 100_000
	maxMembers     = 1000 // members of one convo; the contract's limit
	maxSenders     = 4096
	maxSubscribers = 50_000
	minBody        = 256
	maxBody        = 10 << 20 // the contract's limit
)

// check refuses a configuration that cannot be measured.
func (c *Config) check() error {
	within := func(name string, n, least, most int) error {
		if n < least || n > most {
			return fmt.Errorf("%s is %d, and has to be from %d to %d", name, n, least, most)
		}
		return nil
	}
	err := errors.Join(
		within("in-flight", c.InFlight, 1, maxInFlight), within("turns", c.Turns, 1, 1000),
		within("servers", c.Servers, 1, maxServers),
		within("convos", c.Convos, 0, maxConvos), within("members", c.Members, 0, maxMembers),
		within("senders", c.Senders, 2, maxSenders),
		within("subscribers", c.Subscribers, 0, maxSubscribers), within("body", c.Body, minBody, maxBody),
		within("joins", c.Joins, 1, 10_000),
	)
	switch {
	case err != nil:
		return err
	case c.For <= 0 || c.Warm < 0 || c.Rate < 0 || c.Messages < 0:
		return errors.New("for, warm, rate and messages must not be negative")
	case len(c.Auth) == 0:
		return errors.New("auth must be service, session or both")
	}
	for _, a := range c.Auth {
		if a != AuthService && a != AuthSession {
			return fmt.Errorf("auth is %q, and has to be of %s and %s", a, AuthService, AuthSession)
		}
	}
	return testbed.CheckBinaries(c.Binaries)
}

// bench is one running benchmark.
type bench struct {
	c          *Config
	env        *environment
	meter      *meter
	report     *report.Report
	senders    []*xrpc.Account
	sendTokens []*tokens // tokens of the senders for sendMessage
	readers    []string  // tokens of the senders for getMessages
	convos     *convoSet
	sessions   []string // sessions of the senders; nil before the senders buy them
	workers    []*worker
	rates      map[string]float64 // sends per second, by variant, in the last phase

	acknowledged atomic.Int64  // messages
	enough       chan struct{} // closed when acknowledged reaches Messages

	kills     int64
	sinceKill time.Duration // time under load since the last kill
	profiled  atomic.Bool
}

// Run measures, and then verifies everything that was sent. It returns an error if something could
// not be measured. Broken promises are in the report's verdict.
func Run(ctx context.Context, c Config) (_ *report.Report, err error) {
	defer Catch(&err)
	Check(c.check())
	i := slices.IndexFunc(Scenarios(), func(s Scenario) bool { return s.Name == c.Scenario })
	if i < 0 {
		return nil, fmt.Errorf("no scenario %q; --list names them", c.Scenario)
	}
	scenario := Scenarios()[i]
	scenario.usual(&c)
	if len(c.Binaries) > 1 && !scenario.binaries {
		return nil, fmt.Errorf("%s measures one server, and %d are given", c.Scenario, len(c.Binaries))
	}
	if slices.Contains(c.Auth, AuthSession) && !scenario.sessions {
		return nil, fmt.Errorf("%s measures service-auth tokens only", c.Scenario)
	}
	if scenario.scales {
		Check(c.checkScale())
	} else {
		c.Standby = nil
	}
	if c.Members > 0 && c.Members < 2 {
		return nil, errors.New("a convo has two members at least")
	}
	// The load keeps much memory for a long time. Frequent garbage collection would be its greatest
	// cost.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	b := &bench{c: &c, env: &environment{}, rates: map[string]float64{}, enough: make(chan struct{})}
	b.report = &report.Report{Scenario: c.Scenario, Began: time.Now().UTC(), Command: c.Command, Seed: c.Seed}
	err = Attempt(func() {
		b.begin(ctx)
		scenario.run(ctx, b)
		b.verify(ctx)
	})
	b.closeWorkers()
	return b.report, errors.Join(err, b.env.close(ctx))
}

// closeWorkers closes the connections of the workers.
func (b *bench) closeWorkers() {
	for _, w := range b.workers {
		w.close()
	}
}

// begin starts the servers and makes the senders.
func (b *bench) begin(ctx context.Context) {
	b.say("starting %d mlsd", b.c.Servers)
	b.env.start(ctx, b.c)
	database, postmaster := Must2(inspect(ctx, b.env.database))
	version := Must(b.version(ctx))
	b.meter = &meter{env: b.env, postmaster: postmaster}
	b.report.Database, b.report.Machine = database, machine(version)
	if postmaster == 0 {
		b.note("PostgreSQL is not among the processes of this machine: its processor time is not counted")
	}
	b.senders = b.env.accounts(b.c.Senders)
	for _, account := range b.senders {
		b.sendTokens = append(b.sendTokens, &tokens{account: account})
	}
	b.readers = signAll(b.senders, mlsapi.NSIDGetMessages)
}

// prepare makes the workers, jobs and tokens of a phase.
func (b *bench) prepare(ctx context.Context, s *phase) {
	for len(b.workers) < s.inFlight {
		b.workers = append(b.workers, newWorker(b, len(b.workers)))
	}
	share := make([]float64, len(b.senders)) // the share of each sender in all requests
	workers := b.workers[:s.inFlight]
	var active []int
	for sender, drafts := range b.convos.drafts {
		if len(drafts) > 0 {
			active = append(active, sender)
		}
	}
	for i, w := range workers {
		var mine []int
		for k := i % len(active); k < len(active); k += len(workers) {
			mine = append(mine, active[k])
		}
		w.faults, w.pages = b.c.Faults, s.pages
		w.jobs, w.at = w.jobs[:0], 0
		for _, sender := range mine {
			share[sender] += 1 / float64(len(mine)*len(workers))
			for _, d := range b.convos.drafts[sender] {
				w.jobs = append(w.jobs, job{draft: d, tokens: b.sendTokens[sender], reader: b.readers[sender]})
			}
		}
		w.rng.Shuffle(len(w.jobs), func(i, j int) { w.jobs[i], w.jobs[j] = w.jobs[j], w.jobs[i] })
	}
	b.useSessions(ctx, s.auth == AuthSession)
	if s.auth == AuthSession {
		return
	}
	n := b.expect(s)
	Each(runtime.GOMAXPROCS(0), len(b.senders), func(i int) { b.sendTokens[i].sign(int(n*share[i]) + 20) })
}

// expect returns how many tokens a phase may need.
func (b *bench) expect(s *phase) float64 {
	// If the rate is not known, guess the most requests, or bytes, that are possible here.
	guess := min(20_000, 200e6/float64(b.c.Body))
	if s.rate > 0 {
		guess = s.rate
	} else if known := b.rates[s.variant]; known > 0 {
		guess = known
	}
	const reserve, most = 1.4, 1e6
	span := s.warm + s.span
	if s.storm != nil {
		span += 4 * time.Second
	}
	n := min(guess*span.Seconds()*reserve, most)
	if b.c.Messages > 0 {
		n = min(n, float64(max(b.c.Messages-b.acknowledged.Load(), 0))*reserve)
	}
	return n
}

// learn records how fast a variant was.
func (b *bench) learn(s *phase, r *report.Run) {
	if op := r.Operations[opSend]; op != nil && r.Took > 0 {
		b.rates[s.variant] = max(float64(op.Done)/r.Took.Seconds(), 1)
	}
}

// late returns how many tokens were signed under load since the last call.
func (b *bench) late() (n int64) {
	for _, t := range b.sendTokens {
		n += t.late.Swap(0)
	}
	return n
}

// turns runs the phases in turn, until the number of turns is reached or enough messages are
// acknowledged.
func (b *bench) turns(ctx context.Context, phases ...phase) {
	for turn := 0; b.c.Messages > 0 || turn < b.c.Turns; turn++ {
		for _, s := range phases {
			if b.c.Messages > 0 && b.acknowledged.Load() >= b.c.Messages {
				return
			}
			s.turn = turn
			stop := b.profile(ctx, &s)
			b.run(ctx, s)
			Check(stop())
		}
	}
}

// profileFor is how long the profile of a server takes, in seconds.
const profileFor = 3

// profile takes a profile in the middle of the first phase.
func (b *bench) profile(ctx context.Context, s *phase) (stop func() error) {
	if b.c.Profile == "" || b.profiled.Swap(true) {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		xrpc.Sleep(ctx, b.c.Warm+max(s.span-profileFor*time.Second, 0)/2)
		done <- b.fetchProfile(ctx)
	}()
	return func() error { return <-done }
}

func (b *bench) fetchProfile(ctx context.Context) (err error) {
	defer Catch(&err)
	content := Must(b.env.servers[0].Admin(ctx, http.MethodGet, fmt.Sprintf("/debug/pprof/profile?seconds=%d", profileFor),
		nil))
	return os.WriteFile(b.c.Profile, content, 0o644)
}

// version asks the first server for its version.
func (b *bench) version(ctx context.Context) (_ string, err error) {
	defer Catch(&err)
	req := Must(http.NewRequestWithContext(ctx, http.MethodGet, b.env.servers[0].URL()+"/xrpc/_health", nil))
	resp := Must(b.env.web.RoundTrip(req))
	var out struct{ Version string }
	err = errors.Join(json.NewDecoder(resp.Body).Decode(&out), resp.Body.Close())
	return out.Version, err
}

// say passes a progress line on.
func (b *bench) say(format string, args ...any) {
	if b.c.Progress != nil {
		b.c.Progress(fmt.Sprintf(format, args...))
	}
}

// note adds a line to the report, unless the report already has it.
func (b *bench) note(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(b.report.Notes, line) {
		b.report.Notes = append(b.report.Notes, line)
	}
}
