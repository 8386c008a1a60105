package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/clientsim/bench/report"
	"mlsd/clientsim/load"
	"mlsd/clientsim/testbed"
)

// Shares are shares of this machine's processors, in cores.
type Shares struct {
	Database float64 // of the primary, and as much of a standby
	Node     float64 // of each server
	Load     float64 // what has to be left for the load
}

// checkShares refuses a configuration whose figures would mean nothing.
func (c *Config) checkShares() error {
	s := c.Shares
	switch {
	case len(c.Nodes) == 0 || len(c.Standby) == 0 || len(c.Idle) == 0:
		return errors.New("nodes, standby and idle each need a value")
	case slices.Min(c.Nodes) < 1 || slices.Max(c.Nodes) > mostServers:
		return fmt.Errorf("nodes are %v, and have to be from 1 to %d", c.Nodes, mostServers)
	case slices.Min(c.Idle) < 0 || slices.Max(c.Idle) > mostSubscribers || !slices.IsSorted(c.Idle):
		return fmt.Errorf("idle is %v, and has to be ascending, from 0 to %d", c.Idle, mostSubscribers)
	case c.Database != "" || c.compares() || c.Faults || len(c.Auth) != 1:
		return fmt.Errorf("%s has a PostgreSQL of its own, one server without a name, no faults, and one auth", c.Scenario)
	case s.Database <= 0 || s.Node <= 0 || s.Load <= 0:
		return errors.New("the shares of the database, of a node and of the load have to be more than 0")
	}
	if c.Scenario == "scale-idle" && len(c.Nodes) != 1 {
		return errors.New("scale-idle has one number of nodes")
	}
	if cores := s.sum(slices.Max(c.Nodes), c.hasStandby()); cores+s.Load > float64(runtime.NumCPU()) {
		return fmt.Errorf("the shares are %.2f cores, and %.2f are left for the load: this machine has %d, so the figures would mean nothing",
			cores, s.Load, runtime.NumCPU())
	}
	return nil
}

func (c *Config) hasStandby() bool { return slices.Contains(c.Standby, true) }

// sum is what everybody but the load gets.
func (s Shares) sum(nodes int, standby bool) float64 {
	sum := s.Database + s.Node*float64(nodes)
	if standby {
		sum += s.Database
	}
	return sum
}

// shares are the shares of the processes.
type shares struct {
	Shares
	database, standby *testbed.Share // standby: nil if there is none
	nodes             []*testbed.Share
}

func newShares(c *Config) (s *shares, err error) {
	s = &shares{Shares: c.Shares}
	add := func(name string) (made *testbed.Share) {
		if err == nil {
			made, err = testbed.NewShare(name)
		}
		return made
	}
	s.database = add("database")
	if c.hasStandby() {
		s.standby = add("standby")
	}
	for i := range slices.Max(c.Nodes) {
		s.nodes = append(s.nodes, add(fmt.Sprintf("node-%d", i+1)))
	}
	if err != nil {
		return nil, errors.Join(err, s.remove(context.Background()))
	}
	return s, nil
}

// all calls do for each share, with its name and its size in cores.
func (s *shares) all(do func(share *testbed.Share, name string, cores float64) error) error {
	var errs []error
	call := func(share *testbed.Share, name string, cores float64) {
		if share != nil {
			errs = append(errs, do(share, name, cores))
		}
	}
	call(s.database, report.ShareDatabase, s.Database)
	call(s.standby, report.ShareStandby, s.Database)
	for i, node := range s.nodes {
		call(node, fmt.Sprintf("node %d", i+1), s.Node)
	}
	return errors.Join(errs...)
}

// limit gives everybody its share, and lift the whole machine: for what is not measured.
func (s *shares) limit() error {
	return s.all(func(share *testbed.Share, _ string, cores float64) error { return share.Limit(cores) })
}

func (s *shares) lift() error {
	return s.all(func(share *testbed.Share, _ string, _ float64) error { return share.Limit(0) })
}

func (s *shares) remove(ctx context.Context) error {
	return s.all(func(share *testbed.Share, _ string, _ float64) error { return share.Remove(ctx) })
}

// use reads what everybody has used.
func (s *shares) use() (all []report.Share, err error) {
	err = s.all(func(share *testbed.Share, name string, cores float64) error {
		u, err := share.Use()
		all = append(all, report.Share{Name: name, Cores: cores, Used: u.Used, Periods: u.Periods, Throttled: u.Throttled})
		return err
	})
	return all, err
}

// connections are what a PostgreSQL allows, so that sixteen nodes have enough.
const connections = "600"

// arrangement is what scale varies.
type arrangement struct {
	nodes   int
	standby bool
}

func (a arrangement) String() string {
	name := "1 node"
	if a.nodes > 1 {
		name = fmt.Sprintf("%d nodes", a.nodes)
	}
	if a.standby {
		name += " and a standby"
	}
	return name
}

// arrange makes the servers as the arrangement says. All of them start anew.
func (b *bench) arrange(ctx context.Context, a arrangement) error {
	b.say("%s", a)
	e := b.env
	if a == e.arranged {
		return nil
	}
	for _, w := range b.workers {
		w.close()
	}
	if err := e.runServers(ctx, a.nodes, e.running, a.standby); err != nil {
		return err
	}
	for i, w := range b.workers {
		w.aim(e.addr(i))
	}
	e.arranged = a
	return nil
}

// observation is what a phase under shares says besides its requests.
type observation struct {
	b       *bench
	streams *streams
	db      *pgx.Conn
	found   report.Scale // so far; the rest are the values at the beginning

	shares                 []report.Share
	wal, events            int64
	messages, transactions float64
	busy, machine          time.Duration
	ages                   *load.Counter
}

// observe begins an observation, after everything that costs processor time.
func (b *bench) observe(ctx context.Context, s *phase) (o *observation, err error) {
	a := b.env.arranged
	o = &observation{b: b, streams: s.streams, found: report.Scale{Standby: a.standby, Resident: b.resident}}
	if o.messages, o.transactions, err = b.env.batches(ctx); err != nil {
		return nil, err
	}
	if o.db, err = pgx.Connect(ctx, b.env.database); err != nil {
		return nil, err
	}
	if o.wal, err = o.readWAL(ctx); err != nil {
		return nil, errors.Join(err, o.db.Close(ctx))
	}
	o.ages = load.NewCounter()
	if o.streams != nil {
		o.streams.ages.Store(o.ages)
		o.events = o.streams.events.Load()
	}
	o.busy, o.machine = machineTime()
	if o.shares, err = b.env.shares.use(); err != nil {
		return nil, errors.Join(err, o.db.Close(ctx))
	}
	return o, nil
}

// end ends the observation.
func (o *observation) end(ctx context.Context) (*report.Scale, error) {
	defer func() { _ = o.db.Close(context.WithoutCancel(ctx)) }() // it has only read
	shares, err := o.b.env.shares.use()
	if err != nil {
		return nil, err
	}
	for i, before := range o.shares {
		if i >= len(shares)-len(o.b.env.shares.nodes)+len(o.b.env.servers) {
			break // the shares of servers that do not run
		}
		now := shares[i]
		now.Used, now.Periods, now.Throttled = now.Used-before.Used, now.Periods-before.Periods, now.Throttled-before.Throttled
		o.found.Shares = append(o.found.Shares, now)
	}
	if busy, machine := machineTime(); machine > o.machine {
		o.found.Idle = 1 - float64(busy-o.busy)/float64(machine-o.machine)
	}
	if o.streams != nil {
		events := o.streams.events.Load() - o.events
		o.streams.ages.Store(nil)
		o.found.Events = &load.Operation{Done: events, Latency: o.ages.Latencies(eventAge)}
	}
	wal, err := o.readWAL(ctx)
	if err != nil {
		return nil, err
	}
	messages, transactions, err := o.b.env.batches(ctx)
	if err != nil {
		return nil, err
	}
	o.found.WAL = wal - o.wal
	if transactions > o.transactions {
		o.found.Batch = (messages - o.messages) / (transactions - o.transactions)
	}
	return &o.found, nil
}

// readWAL returns how many bytes of WAL there have ever been.
func (o *observation) readWAL(ctx context.Context) (n int64, err error) {
	err = o.db.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&n)
	return n, err
}

// batches asks all servers how many messages they have written, and in how many transactions.
func (s *environment) batches(ctx context.Context) (messages, transactions float64, err error) {
	sums, counts := make([]float64, len(s.servers)), make([]float64, len(s.servers))
	err = eachOf(len(s.servers), len(s.servers), func(i int) error {
		values, err := s.servers[i].Metrics(ctx)
		sums[i], counts[i] = values["mlsd_message_batch_size_sum"], values["mlsd_message_batch_size_count"]
		return err
	})
	for i := range sums {
		messages, transactions = messages+sums[i], transactions+counts[i]
	}
	return messages, transactions, err
}

// machineTime returns how long the processors of this machine were busy, and how long there were any.
// It is 0 without /proc.
func machineTime() (busy, all time.Duration) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(first) { // cpu user nice system idle iowait irq softirq steal guest guest_nice
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil || i > 8 { // the time of guests is in user and nice too
			continue
		}
		all += time.Duration(n)
		if i != 4 && i != 5 {
			busy += time.Duration(n)
		}
	}
	return busy, all
}
