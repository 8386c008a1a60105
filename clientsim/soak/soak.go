// Package soak runs everything on two servers for hours at a moderate load, and samples the servers
// and their database. Its report shows what grows.
package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/clientsim/scenario"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Config says what to run.
type Config struct {
	For   time.Duration // how long the load goes on
	Rate  int           // messages a second of the steady load
	Every time.Duration // time between two samples
	// Keep is the age at which a row is made old: see aged. Keep is longer than a round.
	Keep   time.Duration
	Seed   uint64
	Binary string // the mlsd to start; "" means that one is found or built
	// Samples is the file that each sample is appended to.
	Samples  string
	Progress func(string) // gets lines that say what is happening
}

// The size of the steady load.
const (
	steadyConvos      = 24
	steadySubscribers = 12
	changeEvery       = 4 * time.Second  // time between two changes to the roster or the epoch of a convo
	connectionLife    = 90 * time.Second // length of most subscribers' connections
	// messagesPerWriter bounds what a writer sends in a run. It is far below the daily quota.
	messagesPerWriter = 20_000
	minWriters        = 8
)

// settings returns the settings of the nodes on a database. Other quotas and rates have their
// defaults. There is no quota of invitations, because a few people invite each other again and again.
func settings(database string) map[string]string {
	return map[string]string{
		"MLSD_DATABASE_URL":    database,
		"MLSD_EVENT_RETENTION": "1h", "MLSD_MESSAGE_RETENTION": "25h", "MLSD_WELCOME_GRACE": "1m",
		"MLSD_QUOTA_INVITATIONS": "0",
	}
}

// Run runs the load until Config.For is over or stop ends, and then judges it. ctx ends everything
// at once. The last line of the samples has the broken promises.
func Run(ctx, stop context.Context, c Config) (err error) {
	defer Catch(&err)
	e := Must(testbed.NewEnvironment(ctx, "127.0.0.1:0", testbed.Binary{Path: c.Binary}))
	e.Defaults = true
	watch := newWatch(testbed.FastTransport())
	defer func() {
		watch.CloseIdleConnections()
		err = errors.Join(err, e.Close(ctx))
	}()
	Check(e.StartPostgres(ctx, nil))
	Check(e.RunNodes(ctx, 2, e.Binaries[0], settings(e.Postgres.URL())))
	w := e.World(e.Nodes[0], watch, c.options(), 0x50a4, c.Progress)
	s := &soak{c: &c, w: w, cluster: w.ClusterOf(e, watch), dir: e.Dir, watch: watch, began: time.Now()}
	return s.run(ctx, stop)
}

func (c *Config) options() testbed.Options {
	writers := max(minWriters, int(float64(c.Rate)*c.For.Seconds()/messagesPerWriter))
	return testbed.Options{
		Seed: c.Seed, For: c.For, Rate: c.Rate, Writers: writers, Convos: steadyConvos, Subscribers: steadySubscribers,
		Clients: 6, Messages: 40, Epochs: 4, Members: 12, Claims: 40, // for the rounds
	}
}

// soak is one run.
type soak struct {
	c       *Config
	w       *testbed.World
	cluster *testbed.Cluster
	dir     *testbed.Directory
	watch   *watch
	began   time.Time
	rounds  counters
}

// run runs the load, takes the samples, and judges.
func (s *soak) run(ctx, stop context.Context) (err error) {
	defer Catch(&err)
	stop, cancel := context.WithTimeout(stop, s.c.For)
	defer cancel()
	database := Must(connectDatabase(ctx, s.cluster.Postgres.URL()))
	defer database.Close()
	out := Must(openSamples(s))
	var beside, sampling sync.WaitGroup
	ended, end := context.WithCancel(ctx)
	defer end()
	sampling.Go(func() { s.sample(ctx, ended, database, out) })
	beside.Go(func() { s.age(ctx, stop, database) })
	beside.Go(func() { s.playRounds(ctx, stop) })
	steady := scenario.Steady{Change: changeEvery, ConnectionLife: connectionLife, OnEvent: s.watch.event}
	err = steady.Play(ctx, stop, s.w, s.cluster)
	cancel()
	beside.Wait()
	end()
	sampling.Wait()
	if err != nil {
		s.w.Broken("the load ended early: %v", err)
	}
	s.w.Attempt(func() { s.w.CheckNodes(ctx, s.cluster) })
	return out.end(s)
}

// played returns the scenarios of the rounds. None of them kills a server or looks into its data.
func played() []scenario.Scenario {
	names := []string{
		"long-conversation", "push", "lost-answer", "lost-answer-app-killed", "twice-at-once", "claim-at-once",
		"welcome-damaged", "contended-commits", "malicious-commit", "verified-log",
	}
	all := scenario.Scenarios()
	return slices.DeleteFunc(all, func(s scenario.Scenario) bool { return !slices.Contains(names, s.Name) })
}

// roundLimit ends a round against a server that answers nothing. Config.Keep is longer, so no row
// of a running round is made old.
const roundLimit = 4 * time.Minute

// playRounds plays scenarios one after the other until stop ends, and rests between scenarios. Each
// round has its own accounts and convos, and removes them.
func (s *soak) playRounds(ctx, stop context.Context) {
	rng := rand.New(rand.NewPCG(s.c.Seed, 0x4095d5))
	scenarios := played()
	for n := 0; stop.Err() == nil; n++ {
		if n%len(scenarios) == 0 {
			rng.Shuffle(len(scenarios), func(i, j int) { scenarios[i], scenarios[j] = scenarios[j], scenarios[i] })
		}
		begun := time.Now()
		s.playRound(ctx, scenarios[n%len(scenarios)], n)
		xrpc.Sleep(stop, max(restTimes*time.Since(begun), minRest))
	}
}

// The pause between two rounds: a multiple of the last round's length, and its minimum.
const (
	restTimes = 5
	minRest   = 10 * time.Second
)

// playRound plays a scenario in a world of its own, against one of the nodes.
func (s *soak) playRound(ctx context.Context, play scenario.Scenario, n int) {
	node := n % len(s.cluster.Nodes)
	w := testbed.NewWorld(testbed.Target{
		Base: s.cluster.Nodes[node].URL(), Audience: xrpc.DefaultServiceDID, Transport: s.watch, Dir: s.dir,
	}, s.w.Options, uint64(n), func(string) {})
	playing, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	play.Play(playing, w)
	if err := s.rotateKey(playing, w); err != nil {
		w.Broken("an account with a new signing key: %v", err)
	}
	if err := s.remove(ctx, w, s.cluster.Nodes[1-node]); err != nil {
		w.Broken("%v", err)
	}
	for _, v := range w.Found() {
		s.w.Broken("round %d, %s, at node %d: %s", n, play.Name, node+1, v)
	}
	s.rounds.played.Add(1)
	if len(w.Found()) > 0 {
		s.rounds.failed.Add(1)
	}
}

// rotateKey gives an account of a world a new signing key, as its owner's PDS does, and uses the
// new key.
func (s *soak) rotateKey(ctx context.Context, w *testbed.World) (err error) {
	defer Catch(&err)
	accounts := w.Accounts()
	if len(accounts) == 0 {
		return errors.New("the scenario has made none")
	}
	account := Must(xrpc.NewAccountOf(accounts[0], w.RNG.IntN(2)))
	Check(s.dir.Register(account))
	_, err = w.Net.Do(ctx, account, xrpc.ConvosCall("", 10))
	return err
}

// remove deletes the convos of a world and erases its accounts, as an operator does.
func (s *soak) remove(ctx context.Context, w *testbed.World, node *testbed.Proc) (err error) {
	defer Catch(&err)
	for _, convo := range w.Model.Snapshot() {
		Check(node.Operate(ctx, "convo/delete", map[string]string{"convo": convo.ID}))
	}
	for _, did := range w.Accounts() {
		Check(node.Operate(ctx, "account/erase", map[string]string{"did": did.String()}))
	}
	return nil
}

// The server keeps messages for at least a day, and records and the audit log for longer. So age
// makes time pass in the database: rows that are older than Config.Keep become so old that the
// server's workers delete them, as in a service that is months old.

// aged are the statements that make rows old. $1 is Config.Keep. A row is made old once.
var aged = []string{
	// The sweep of messages deletes messages after MLSD_MESSAGE_RETENTION, 25 h.
	`UPDATE messages SET created_at = created_at - interval '26 hours'
	WHERE created_at < now() - $1::interval AND created_at > now() - interval '20 hours'`,
	// The sweep deletes records a day after their lifetime, which is a week at most.
	`UPDATE idempotency_keys SET created_at = created_at - interval '9 days', started_at = started_at - interval '9 days',
		completed_at = completed_at - interval '9 days', expires_at = expires_at - interval '9 days'
	WHERE state = 'completed' AND created_at < now() - $1::interval AND created_at > now() - interval '8 days'`,
	// The sweep deletes lines of the audit log after 90 days.
	`UPDATE audit_log SET at = at - interval '91 days' WHERE at < now() - $1::interval AND at > now() - interval
			'80 days'`,
	// The sweep of Welcomes expires them after 90 days, and erases their bytes.
	`UPDATE welcomes SET created_at = created_at - interval '91 days', fetched_at = fetched_at - interval '91 days',
		grace_expires_at = grace_expires_at - interval '91 days', confirmed_at = confirmed_at - interval '91 days'
	WHERE created_at < now() - $1::interval AND created_at > now() - interval '80 days'`,
	`UPDATE welcome_bodies SET created_at = created_at - interval '91 days'
	WHERE created_at < now() - $1::interval AND created_at > now() - interval '80 days'`,
	// The sweep deletes jobs a week after their end.
	`UPDATE push_jobs SET ended_at = ended_at - interval '8 days'
	WHERE ended_at < now() - $1::interval AND ended_at > now() - interval '7 days'`,
}

// age makes rows old at the beginning, when the database is empty, and then every tenth of
// Config.Keep until stop ends. A statement that meets a deadlock runs again the next time.
func (s *soak) age(ctx, stop context.Context, db *pgxpool.Pool) {
	for stop.Err() == nil {
		for _, sql := range aged {
			err := testbed.WithoutTriggers(ctx, db, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, sql, s.c.Keep)
				return err
			})
			if err != nil && !deadlocked(err) {
				s.w.Broken("the run itself: make rows old: %v", err)
			}
		}
		xrpc.Sleep(stop, s.c.Keep/10)
	}
}

// deadlocked reports whether PostgreSQL ended a transaction because of a deadlock.
func deadlocked(err error) bool {
	var failure *pgconn.PgError
	return errors.As(err, &failure) && failure.Code == "40P01"
}
