package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim"
	"mlsd/clientsim/bench/report"
)

// Config says what to measure, and against what.
type Config struct {
	Scenario string
	Seed     uint64
	Command  string // that makes the report again

	InFlight int           // requests at any time; in an open loop, at most
	Rate     float64       // requests a second, whatever becomes of those before; 0: a closed loop
	Turns    int           // how often each variant has its turn
	For      time.Duration // how long that is
	Warm     time.Duration // before each, not counted
	Variants []string      // of batched, alone, ceiling; where the scenario compares these
	Messages int64         // acknowledged messages, warm-up included, after which to end, instead of after Turns; 0: none

	Convos      int // 0: as the scenario has it
	Members     int // of each convo; 0: as the scenario has it
	Senders     int // accounts that send
	Subscribers int // 0: as the scenario has it
	Servers     int // mlsd processes
	Body        int // bytes of a ciphertext
	Joins       int // devices that join at once, or claims, in a storm

	// Curve of the accounts' keys: k256, p256 or mixed.
	Curve string
	// Faults has answers dropped, requests sent twice at once, and a server killed every so often.
	Faults    bool
	KillEvery time.Duration

	// Database is the URL of a PostgreSQL, or "" for one of our own.
	Database string
	// Binary is the mlsd to start, or "" to look for one or build it.
	Binary string
	// Profile is the file for a processor profile of the first server, or "".
	Profile string
	// Watch is told of what goes on, or nil.
	Watch Watch
}

// Watch is told of every stretch and second under load, and of what else happens.
type Watch interface {
	Begin(run string, of time.Duration)
	Second(s report.Second)
	Line(text string)
}

// Default is what is measured if nobody says otherwise.
func Default() Config {
	return Config{
		InFlight: 128, Turns: 5, For: 4 * time.Second, Warm: 500 * time.Millisecond, Variants: []string{batched, alone, ceiling},
		Senders: 64, Servers: 1, Body: 1 << 10, Joins: 1000, Curve: "k256", KillEvery: time.Minute,
	}
}

// The variants that are ways to write messages.
const (
	batched = "batched" // many in one transaction
	alone   = "alone"   // each in one of its own
	ceiling = "ceiling" // not at all: what the rest of a request costs
)

var modes = map[string]string{batched: clientsim.SendsTogether, alone: clientsim.SendsAlone, ceiling: clientsim.SendsNowhere}

// Most is how much may be asked for, where more would only exhaust the machine.
const (
	mostInFlight    = 4096
	mostServers     = 16
	mostConvos      = 100_000
	mostMembers     = 1000 // of one convo, by the contract
	mostSenders     = 4096
	mostSubscribers = 50_000
	leastBody       = 256
	mostBody        = 10 << 20 // by the contract
)

// check refuses what cannot be measured.
func (c *Config) check() error {
	within := func(name string, n, least, most int) error {
		if n < least || n > most {
			return fmt.Errorf("%s is %d, and has to be from %d to %d", name, n, least, most)
		}
		return nil
	}
	err := errors.Join(
		within("in-flight", c.InFlight, 1, mostInFlight), within("turns", c.Turns, 1, 1000), within("servers", c.Servers, 1, mostServers),
		within("convos", c.Convos, 0, mostConvos), within("members", c.Members, 0, mostMembers), within("senders", c.Senders, 2, mostSenders),
		within("subscribers", c.Subscribers, 0, mostSubscribers), within("body", c.Body, leastBody, mostBody), within("joins", c.Joins, 1, 10_000),
	)
	switch {
	case err != nil:
		return err
	case c.For <= 0 || c.Warm < 0 || c.Rate < 0 || c.Messages < 0:
		return errors.New("for, warm, rate and messages must not be negative")
	case c.Curve != "k256" && c.Curve != "p256" && c.Curve != "mixed":
		return fmt.Errorf("curve is %q, and has to be k256, p256 or mixed", c.Curve)
	case len(c.Variants) == 0:
		return errors.New("no variant is to be measured")
	}
	for _, v := range c.Variants {
		if modes[v] == "" {
			return fmt.Errorf("no variant %q: there are %s, %s and %s", v, batched, alone, ceiling)
		}
	}
	return nil
}

// bench is one benchmark under way.
type bench struct {
	c       *Config
	stage   *stage
	meter   *meter
	report  *report.Report
	senders []*clientsim.Account
	sends   []*tokens // of the senders
	marks   []*tokens // the same, for updateCursor
	readers []string  // the same, for getMessages
	convos  []*convo
	scenes  []*scene
	workers []*worker
	rates   map[string]float64 // sends a second, by variant, as they were the last time

	acknowledged atomic.Int64  // messages
	enough       chan struct{} // closed when that is as many as were asked for

	kills     int64
	sinceKill time.Duration // under load
	profiled  atomic.Bool
}

// Run measures, and then verifies everything that was sent. The error is for what kept it from being measured; broken promises are in
// the report's verdict.
func Run(ctx context.Context, c Config) (_ *report.Report, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(scenarios(), func(s Scenario) bool { return s.Name == c.Scenario })
	if i < 0 {
		return nil, fmt.Errorf("no scenario %q; --list names them", c.Scenario)
	}
	scenario := scenarios()[i]
	scenario.usual(&c)
	if c.Members > 0 && c.Members < 2 {
		return nil, errors.New("a convo has two members at least")
	}
	// The load's memory is much and lives long; to collect it often would be its greatest cost.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	b := &bench{c: &c, rates: map[string]float64{}, enough: make(chan struct{}), report: &report.Report{
		Scenario: c.Scenario, Began: time.Now().UTC(), Command: c.Command, Seed: c.Seed,
	}}
	defer func() {
		for _, w := range b.workers {
			w.close()
		}
		if b.stage != nil {
			err = errors.Join(err, b.stage.close(ctx))
		}
	}()
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	if err := scenario.run(ctx, b); err != nil {
		return nil, err
	}
	return b.report, b.verify(ctx)
}

// begin starts the servers and makes those who send.
func (b *bench) begin(ctx context.Context) error {
	b.say("starting %d mlsd", b.c.Servers)
	var err error
	if b.stage, err = newStage(ctx, b.c); err != nil {
		return err
	}
	database, postmaster, err := inspect(ctx, b.stage.database)
	if err != nil {
		return err
	}
	version, err := b.version(ctx)
	if err != nil {
		return err
	}
	b.meter = &meter{servers: b.stage.servers, postmaster: postmaster}
	b.report.Database, b.report.Machine = database, machine(version)
	if postmaster == 0 {
		b.note("PostgreSQL is not among the processes of this machine: its processor time is not counted")
	}
	if b.senders, err = b.stage.accounts(b.c.Senders); err != nil {
		return err
	}
	for _, account := range b.senders {
		of := func(method string) *tokens {
			return &tokens{account: account, audience: b.stage.audience, method: syntax.NSID(method)}
		}
		b.sends, b.marks = append(b.sends, of(mlsapi.NSIDSendMessage)), append(b.marks, of(mlsapi.NSIDUpdateCursor))
		reader, err := of(mlsapi.NSIDGetMessages).take()
		if err != nil {
			return err
		}
		b.readers = append(b.readers, reader)
	}
	return nil
}

// prepare has workers, what they send and the tokens for it ready for a stretch.
func (b *bench) prepare(s *stretch) error {
	for len(b.workers) < s.flight {
		b.workers = append(b.workers, newWorker(b, len(b.workers)))
	}
	share := make([]float64, len(b.senders)) // of the requests, by sender
	workers := b.workers[:s.flight]
	var active []int
	for sender, drafts := range s.scene.drafts {
		if len(drafts) > 0 {
			active = append(active, sender)
		}
	}
	for i, w := range workers {
		var mine []int
		for k := i % len(active); k < len(active); k += len(workers) {
			mine = append(mine, active[k])
		}
		w.faults, w.keeps, w.mixed = b.c.Faults, s.mode != clientsim.SendsNowhere, s.mixed
		w.lots, w.at, w.last = w.lots[:0], 0, receipt{}
		for _, sender := range mine {
			share[sender] += 1 / float64(len(mine)*len(workers))
			for _, d := range s.scene.drafts[sender] {
				w.lots = append(w.lots, lot{draft: d, sends: b.sends[sender], marks: b.marks[sender], reader: b.readers[sender]})
			}
		}
		w.rng.Shuffle(len(w.lots), func(i, j int) { w.lots[i], w.lots[j] = w.lots[j], w.lots[i] })
	}
	n := b.expect(s)
	return each(len(b.senders), func(i int) error {
		mine := int(n*share[i]) + 20
		if s.mixed {
			if err := b.marks[i].sign(mine / 4); err != nil {
				return err
			}
		}
		return b.sends[i].sign(mine)
	})
}

// expect is how many tokens a stretch may need.
func (b *bench) expect(s *stretch) float64 {
	// Of what is not known yet: as fast as it goes here, or as fast as bytes go.
	guess := min(20_000, 200e6/float64(s.scene.body))
	if s.rate > 0 {
		guess = s.rate
	} else if known := b.rates[s.variant]; known > 0 {
		guess = known
	}
	const reserve, most = 1.4, 1e6
	span := b.c.Warm + s.span
	if s.storm != nil {
		span += 4 * time.Second
	}
	n := min(guess*span.Seconds()*reserve, most)
	if b.c.Messages > 0 {
		n = min(n, float64(max(b.c.Messages-b.acknowledged.Load(), 0))*reserve)
	}
	return n
}

// learn keeps how fast a variant was.
func (b *bench) learn(s *stretch, r *report.Run) {
	if op := r.Operations[deedSend.String()]; op != nil && r.Took > 0 {
		b.rates[s.variant] = max(float64(op.Done)/r.Took.Seconds(), 1)
	}
}

// late counts the tokens that were signed under load since it was last asked.
func (b *bench) late() (n int64) {
	for _, t := range b.sends {
		n += t.late.Swap(0)
	}
	return n
}

// turns plays stretches by turns, as often as is asked for, or until enough was acknowledged.
func (b *bench) turns(ctx context.Context, stretches ...stretch) error {
	for turn := 0; ; turn++ {
		if b.c.Messages == 0 && turn == b.c.Turns {
			return nil
		}
		for _, s := range stretches {
			if b.c.Messages > 0 && b.acknowledged.Load() >= b.c.Messages {
				return nil
			}
			s.turn = turn
			stop := b.profile(ctx, &s)
			_, err := b.run(ctx, s)
			if err = errors.Join(err, stop()); err != nil {
				return fmt.Errorf("%s: %w", s.variant, err)
			}
		}
	}
}

// profileFor is how long the profile of a server takes.
const profileFor = 3

// profile takes one in the middle of the first stretch that writes as servers do.
func (b *bench) profile(ctx context.Context, s *stretch) (stop func() error) {
	if b.c.Profile == "" || s.mode != clientsim.SendsTogether && s.mode != "" || b.profiled.Swap(true) {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		pause(ctx, b.c.Warm+max(s.span-profileFor*time.Second, 0)/2)
		done <- b.fetchProfile(ctx)
	}()
	return func() error { return <-done }
}

func (b *bench) fetchProfile(ctx context.Context) error {
	address := fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", b.stage.servers[0].AdminURL(), profileFor)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	content, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile: %s %s", resp.Status, content)
	}
	return os.WriteFile(b.c.Profile, content, 0o644)
}

// version asks the first server for its own.
func (b *bench) version(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.stage.servers[0].URL()+"/xrpc/_health", nil)
	if err != nil {
		return "", err
	}
	resp, err := b.stage.web.RoundTrip(req)
	if err != nil {
		return "", err
	}
	var out struct{ Version string }
	return out.Version, errors.Join(json.NewDecoder(resp.Body).Decode(&out), resp.Body.Close())
}

// say tells whoever watches.
func (b *bench) say(format string, args ...any) {
	if b.c.Watch != nil {
		b.c.Watch.Line(fmt.Sprintf(format, args...))
	}
}

// note puts a line into the report.
func (b *bench) note(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(b.report.Notes, line) {
		b.report.Notes = append(b.report.Notes, line)
	}
}

// stage a plan, and say what its ciphertexts are.
func (b *bench) set(ctx context.Context, p plan) (*scene, error) {
	b.say("making %d convos of %d members", p.convos, p.members)
	s, err := b.newScene(ctx, p, b.senders)
	if err != nil {
		return nil, err
	}
	b.scenes = append(b.scenes, s)
	var kind strings.Builder
	if s.real {
		kind.WriteString("MLS PrivateMessages, encrypted by the devices of their senders")
	} else {
		fmt.Fprintf(&kind, "hollow above %d KiB: an MLS header and noise", maxReal>>10)
	}
	b.note("ciphertexts: %s; sent by turns, each time under another idempotency key", kind.String())
	if p.members > maxTroupe {
		b.note("in convos of more than %d members, the others have no device", maxTroupe)
	}
	return s, nil
}
