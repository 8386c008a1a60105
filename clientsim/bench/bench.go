// Package bench measures mlsd under load, over HTTP, as clients see it. Afterwards it checks that
// every acknowledged message is stored, because a rate with lost messages means nothing.
//
//	begin: servers, accounts, convos, ciphertexts
//	by turns, for each variant: sign tokens, load (warm-up, then the window that counts)
//	verify: read every convo, ask the server's own checker
//
// The load shares its machine with the server. So the load has its own cheap HTTP client (wire),
// and encrypts and signs before the measurement. The package compares nothing: benchstat does, with
// Report.WriteLines.
package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Config says what to measure, and against what. A number of the load that is 0 gets the scenario's
// default.
type Config struct {
	Scenario string
	Seed     uint64
	Load

	Turns int           // how many turns each variant has
	For   time.Duration // length of a turn
	Warm  time.Duration // time before each turn that is not counted
	// Auth lists how senders authenticate: service, session or both by turns. Only some scenarios
	// support sessions.
	Auth []string
	// Messages is how many acknowledged messages, with the warm-up, end the only turn. 0 means that
	// For ends a turn.
	Messages  int64
	Joins     int           // devices that join at once in a storm, or claims that are made at once
	KillEvery time.Duration // with Faults: time under load between two kills; 0 means no kills

	// Nodes and Standby are for scale: numbers of servers, and whether the servers read from a
	// standby, by turns. InFlight is then the number for each server.
	Nodes   []int
	Standby []bool

	// Entries and Rosters are for growth: numbers of log entries in all convos, and of members of one.
	Entries, Rosters []int

	// Database is the URL of a PostgreSQL. If it is "", the benchmark starts one.
	Database string
	// Binaries are the mlsd binaries to start. If the list is empty, the benchmark finds or builds a
	// binary. Binaries with names take turns as variants.
	Binaries []testbed.Binary
	// Progress is called with lines that say what is happening.
	Progress func(string)
}

// Default returns the default configuration.
func Default() Config {
	return Config{
		Load:  Load{InFlight: 128, Servers: 1, Senders: 64, Body: 1 << 10},
		Turns: 5, For: 4 * time.Second, Warm: time.Second, Auth: []string{AuthService}, Joins: 1000,
		KillEvery: time.Minute, Nodes: []int{1, 2, 4, 8}, Standby: []bool{false},
		Entries: []int{10_000, 100_000, 1_000_000}, Rosters: []int{10, 100, 1000},
		Progress: func(string) {},
	}
}

// Ways in which senders authenticate.
const (
	AuthService = "service" // a new service-auth token for each request
	AuthSession = "session" // one session per sender, bought with a service-auth token
)

// check refuses a configuration that cannot be measured.
func (c *Config) check(s *Scenario) error {
	const maxServers, maxBody, maxEntries = 16, 10 << 20, 10_000_000 // as connections allow; the contract's limit; 14 GB
	for _, value := range []struct {
		name           string
		n, least, most int
	}{
		{"in-flight", c.InFlight, 1, 4096}, {"turns", c.Turns, 1, 1000}, {"servers", c.Servers, 1, maxServers},
		{"fewest nodes", slices.Min(c.Nodes), 1, maxServers}, {"most nodes", slices.Max(c.Nodes), 1, maxServers},
		{"convos", c.Convos, 1, 100_000}, {"members", c.Members, 2, 1000}, {"senders", c.Senders, 2, 4096},
		{"fewest entries", slices.Min(c.Entries), 1, maxEntries}, {"most entries", slices.Max(c.Entries), 1, maxEntries},
		{"smallest roster", slices.Min(c.Rosters), 2, 1000}, {"largest roster", slices.Max(c.Rosters), 2, 1000},
		{"subscribers", c.Subscribers, 0, 50_000}, {"body", c.Body, 256, maxBody},
	} {
		if value.n < value.least || value.n > value.most {
			return fmt.Errorf("%s is %d, and has to be from %d to %d", value.name, value.n, value.least, value.most)
		}
	}
	for _, a := range c.Auth {
		if a != AuthService && a != AuthSession {
			return fmt.Errorf("auth is %q, and has to be of %s and %s", a, AuthService, AuthSession)
		}
	}
	switch {
	case c.For <= 0 || c.Warm < 0 || c.Rate < 0 || c.Messages < 0:
		return errors.New("for, warm-up, rate and messages must not be negative")
	case s.everyone && (c.Members < c.Senders || c.Subscribers > maxStreams*c.Senders):
		return fmt.Errorf("in %s every sender is a member, and opens at most %d streams: --senders is %d, --members %d, "+
			"--subscribers %d", s.Name, maxStreams, c.Senders, c.Members, c.Subscribers)
	case len(c.Binaries) > 1 && !s.binaries:
		return fmt.Errorf("%s measures one server, and %d are given", s.Name, len(c.Binaries))
	case slices.Contains(c.Auth, AuthSession) && !s.sessions:
		return fmt.Errorf("%s measures service-auth tokens only", s.Name)
	case c.Database != "" && slices.Contains(c.Standby, true):
		return errors.New("a given PostgreSQL has no standby")
	}
	return testbed.CheckBinaries(c.Binaries)
}

// bench is one running benchmark.
type bench struct {
	c       *Config
	env     *environment
	report  *Report
	senders []*sender
	convos  []*convo
	drafts  []*draft // of all convos
	workers []*worker

	phase        *phase        // what the workers do
	next         atomic.Int64  // counts the drafts that workers took
	acknowledged atomic.Int64  // messages of the phase
	enough       chan struct{} // closed when acknowledged reaches phase.messages
	fastest      float64       // the greatest number of messages a second in any phase

	kills     int64
	sinceKill time.Duration // time under load since the last kill
}

// Run measures, and then verifies everything that was sent. It returns an error if something could
// not be measured. Broken promises are in the report's verdict.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	defer Catch(&err)
	all := Scenarios()
	i := slices.IndexFunc(all, func(s Scenario) bool { return s.Name == c.Scenario })
	if i < 0 {
		return nil, fmt.Errorf("no scenario %q; --list names them", c.Scenario)
	}
	c.fill(all[i].usual)
	Check(c.check(&all[i]))
	// The load keeps much memory for a long time. Frequent garbage collection would be its greatest
	// cost.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	b := &bench{c: &c, env: &environment{}}
	b.report = &Report{Scenario: c.Scenario, Began: time.Now().UTC(), Seed: c.Seed, Load: c.Load}
	err = Attempt(func() {
		b.begin(ctx)
		all[i].run(ctx, b)
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

// accounts returns the accounts of the senders.
func (b *bench) accounts() []*xrpc.Account {
	all := make([]*xrpc.Account, len(b.senders))
	for i, sender := range b.senders {
		all[i] = sender.Account
	}
	return all
}

// begin starts the servers, and makes the senders and the convos.
func (b *bench) begin(ctx context.Context) {
	b.say("starting %d mlsd", b.c.Servers)
	b.env.start(ctx, b.c)
	b.say("profiles of the first: %s/debug/pprof/", b.env.Nodes[0].AdminURL())
	b.report.Machine = machine(b.version(ctx), b.env.inspect(ctx))
	if b.env.postmaster == 0 {
		b.note("PostgreSQL is not among the processes of this machine: its processor time is not counted")
	}
	accounts := b.env.accounts(b.c.Senders)
	readers := signAll(accounts, mlsapi.NSIDGetMessages)
	for i, account := range accounts {
		b.senders = append(b.senders, &sender{Account: account, reader: readers[i]})
	}
	b.makeConvos(ctx)
}

// turns runs the phases in turn.
func (b *bench) turns(ctx context.Context, phases ...phase) {
	for turn := range b.c.Turns {
		for _, s := range phases {
			s.turn = turn
			b.run(ctx, s)
		}
	}
}

// version asks the first server for its version.
func (b *bench) version(ctx context.Context) string {
	req := Must(http.NewRequestWithContext(ctx, http.MethodGet, b.env.Nodes[0].URL()+"/xrpc/_health", nil))
	resp := Must(b.env.web.RoundTrip(req))
	var out struct{ Version string }
	Check(errors.Join(json.NewDecoder(resp.Body).Decode(&out), resp.Body.Close()))
	return out.Version
}

func (b *bench) say(format string, args ...any) { b.c.Progress(fmt.Sprintf(format, args...)) }

// note adds a line to the report, unless the report already has it.
func (b *bench) note(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(b.report.Notes, line) {
		b.report.Notes = append(b.report.Notes, line)
	}
}
