package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/urfave/cli/v3"

	"mlsd/api/mlsapi"
	"mlsd/internal/await"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/internal/promtest"
	"mlsd/internal/worker"
	"mlsd/node"
)

// simulated is a clock that a test moves: hours of a node's work pass in seconds.
type simulated struct {
	mu      sync.Mutex // guards what follows
	now     time.Time
	tickers map[*simulatedTicker]bool
}

type simulatedTicker struct {
	every time.Duration
	next  time.Time
	ticks chan time.Time // as of a time.Ticker: one tick waits, and later ones are dropped
}

// clock is what the node gets.
func (s *simulated) clock() worker.Clock { return worker.Clock{Now: s.time, Ticker: s.ticker} }

func (s *simulated) time() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *simulated) ticker(every time.Duration) (<-chan time.Time, func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := &simulatedTicker{every, s.now.Add(every), make(chan time.Time, 1)}
	s.tickers[one] = true
	return one.ticks, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.tickers, one)
	}
}

// busy reports whether a worker has not begun the round of its last tick. Those that work every hung
// do not count.
func (s *simulated) busy(hung time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.tickers {
		if one.every != hung && len(one.ticks) > 0 {
			return true
		}
	}
	return false
}

// advance moves the clock. Each worker whose interval has passed gets a tick.
func (s *simulated) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
	for one := range s.tickers {
		if one.next.After(s.now) {
			continue
		}
		one.next = s.now.Add(one.every)
		select {
		case one.ticks <- s.now:
		default:
		}
	}
}

// watched are nodes of one database that a Prometheus scrapes, with the rules of deploy/ops.
type watched struct {
	*world
	t        *testing.T
	database string
	db       *pgxpool.Pool
	time     *simulated
	wrong    movedClock    // of tokens
	hung     time.Duration // the interval of a worker whose round does not end
	flags    []string
	files    string        // the directory of attachments; "": not asked for
	deleted  chan []string // accounts whose deletion the Jetstream is to tell; nil: there is none
	nodes    []*server
	rules    []promtest.Rule
	found    *promtest.Evaluation
}

func newWatched(t *testing.T, flags ...string) *watched {
	t.Helper()
	w := &watched{world: newWorld(t), t: t, database: pgtest.URL(t),
		time:  &simulated{now: time.Now(), tickers: map[*simulatedTicker]bool{}},
		rules: slices.Concat(rulesOf(t, "recording.yml"), rulesOf(t, "alerts.yml")),
		found: promtest.NewEvaluation(promtest.New())}
	var err error
	if w.db, err = pgpool.Open(t.Context(), w.database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.db.Close)
	w.flags = w.place(flags)
	w.add()
	w.use(w.nodes[0].admin, w.nodes[0].public)
	await.Until(t, "the node leads the sequencer", // in a moment of the system's time, which can be hours of this clock
		func() bool { return scrape(t, w.nodes[0])["mlsd_sequencer_leader"] == 1 })
	return w
}

// add boots another node.
func (w *watched) add() {
	w.t.Helper()
	serve := func(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
		return node.Run(ctx, &cli.Command{Name: "mlsd", Action: node.WithConfig(0,
			func(ctx context.Context, cfg node.Config, _ *cli.Command) error {
				cfg.Clock = w.time.clock()
				cfg.Now = w.wrong.now
				return node.Serve(ctx, cfg, stdout, stderr)
			})}, args, environ)
	}
	s := launchAs(w.t, serve, nil, w.world.flags(append([]string{"--database-url", w.database, "--allow-loopback=true",
		"--failpoints=true", "--rate-did", "1e6/1000000", "--rate-ip", "1e6/1000000"}, w.flags...)...)...)
	s.ready()
	w.nodes = append(w.nodes, s)
}

// step lets time pass, scrapes the nodes, and returns the alerts that fire.
func (w *watched) step(d time.Duration) (firing []string) {
	w.t.Helper()
	await.Until(w.t, "workers begin their rounds", func() bool { return !w.time.busy(w.hung) })
	w.time.advance(d)
	now := w.time.time()
	for i, s := range w.nodes {
		target := labels.FromStrings("job", "mlsd", "instance", string(rune('a'+i)))
		if err := w.found.Series.Scrape(page(s), now, target); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, r := range w.rules {
		found, err := w.found.Rule(w.t.Context(), r, now)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(found) > 0 {
			firing = append(firing, r.Alert)
		}
	}
	return firing
}

// page returns the metrics of a node, or nil if it does not answer.
func page(s *server) []byte {
	resp, err := http.Get(s.admin + "/metrics")
	if err != nil {
		return nil
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil
	}
	return text
}

// silent lets time pass in steps. No alert may fire. each is called before each step; nil: nothing is.
func (w *watched) silent(d, step time.Duration, each func()) {
	w.t.Helper()
	for at := time.Duration(0); at < d; at += step {
		if each != nil {
			each()
		}
		if firing := w.step(step); len(firing) > 0 {
			w.t.Fatalf("after %s: %q", at+step, firing)
		}
	}
}

// Finding G1: no alert fires on a node that is well. All rules are evaluated on what a real node
// serves, every 15 seconds, for 20 minutes while nobody uses it, and for 20 minutes while people do.
func TestAlertsAreSilent(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	const scrapeInterval = 15 * time.Second
	w := newWatched(t)
	w.silent(20*time.Minute, scrapeInterval, nil)
	people := newPeople(w)
	w.silent(20*time.Minute, scrapeInterval, people.round)
	w.wantSound()
}

// people use a server, and nothing goes wrong that does not go wrong every day.
type people struct {
	*watched
	n          int
	alice, bob *user
	convo      *convo
	hook       hook
}

func newPeople(w *watched) *people {
	p := &people{watched: w, alice: w.user(), bob: w.user(), hook: newHook(w.t)}
	p.alice.publication().must().ok()
	p.bob.publication().must().ok()
	p.convo = p.alice.create(p.bob)
	p.bob.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: p.convo.id}).must().ok()
	url := p.hook.URL + "/"
	p.bob.procedure(mlsapi.NSIDRegisterPushTarget,
		&mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: &url}).must().ok()
	p.alice.stream()
	return p
}

// round is what happens between two scrapes: messages, one of them repeated, and now and then a new
// member, a lost race, and a key that is used twice.
func (p *people) round() {
	p.n++
	hello := p.alice.message(p.convo, fmt.Sprint("hello ", p.n))
	p.alice.procedure(mlsapi.NSIDSendMessage, hello).must().ok()
	p.alice.procedure(mlsapi.NSIDSendMessage, hello).must().ok()
	p.alice.query(mlsapi.NSIDGetMessages, "convoId", p.convo.id).must().ok()
	if p.n%10 == 0 {
		carol := p.user()
		carol.publication().must().ok()
		p.alice.addition(p.convo, carol).must().ok()
		p.convo.epoch++
		carol.query(mlsapi.NSIDGetWelcome, "convoId", p.convo.id).must().ok()
		carol.procedure(mlsapi.NSIDConfirmWelcome,
			&mlsapi.ConfirmWelcomeInput{ConvoID: p.convo.id, Success: true}).must().ok()
	}
	if p.n%30 == 0 {
		late := &convo{id: p.convo.id, group: p.convo.group, epoch: p.convo.epoch + 1}
		p.alice.procedure(mlsapi.NSIDSendMessage, p.alice.message(late, "too soon")).must().fails(http.StatusConflict,
			mlsapi.ErrEpochMismatch)
		other := p.alice.message(p.convo, "something else")
		other.IdempotencyKey = hello.IdempotencyKey
		p.alice.procedure(mlsapi.NSIDSendMessage, other).must().fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
	}
	for len(p.hook.calls) > 0 {
		<-p.hook.calls
	}
}

// Every alert fires when what it is for really happens to a node, and not before.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	left := map[string]string{}
	maps.Copy(left, notCaused)
	for _, f := range faults {
		for _, alert := range f.alerts {
			left[alert] = "caused"
		}
		t.Run(f.alerts[0], func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, f.flags...)
			step := f.step
			if step == 0 {
				step = time.Minute
			}
			if !f.atStart {
				w.silent(3*time.Minute, time.Minute, nil)
			}
			each, wanted := f.cause(w), slices.Clone(f.alerts)
			for at := time.Duration(0); len(wanted) > 0; at += step {
				if at > 2*time.Hour {
					t.Fatalf("after %s these do not fire: %q", at, wanted)
				}
				if each != nil {
					each()
				}
				firing := w.step(step)
				wanted = slices.DeleteFunc(wanted, func(alert string) bool { return slices.Contains(firing, alert) })
			}
		})
	}
	for _, r := range rulesOf(t, "alerts.yml") {
		if left[r.Alert] == "" {
			t.Errorf("nothing causes %s, and nothing says why a test cannot", r.Alert)
		}
		delete(left, r.Alert)
	}
	for alert := range left {
		t.Errorf("there is no alert %s", alert)
	}
}

// exec runs a statement in the nodes' database.
func (w *watched) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", strings.TrimSpace(sql), err)
	}
}

// count returns the number that a query finds.
func (w *watched) count(sql string, args ...any) (n int) {
	w.t.Helper()
	if err := w.db.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", strings.TrimSpace(sql), err)
	}
	return n
}
