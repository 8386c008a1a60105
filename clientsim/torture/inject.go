package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/torture/pgwire"
	"mlsd/clientsim/xrpc"
)

// injector carries out a plan.
type injector struct {
	cluster  *testbed.Cluster
	settings map[string]string  // settings of the nodes
	proxies  []*pgwire.Proxy    // one for each node, in the order of the nodes
	disk     *testbed.SmallDisk // PostgreSQL's disk; nil means that no FillDisk is planned
	bouncer  *testbed.PgBouncer // the last node's; nil means that no KillPgBouncer is planned
	note     func(format string, args ...any)
	rng      *rand.Rand // of the goroutine that injects faults of processes

	mu    sync.Mutex // guards count
	count map[string]int
}

func newInjector(w *testbed.World, f *testbed.Cluster, settings map[string]string, e *equipment) *injector {
	return &injector{
		cluster: f, settings: settings, proxies: e.proxies, disk: e.disk, bouncer: e.bouncer, note: w.Note,
		rng: rand.New(rand.NewPCG(w.Seed, 0x1213)), count: map[string]int{},
	}
}

// inject carries the plan out until loading ends. Faults of connections overlap with everything.
// Faults of processes come one after the other, each with its recovery, so they can be late.
func (i *injector) inject(ctx, loading context.Context, plan []Step) error {
	begun := time.Now()
	var wires, processes []Step
	for _, s := range plan {
		if s.Kind == Wire {
			wires = append(wires, s)
		} else {
			processes = append(processes, s)
		}
	}
	var all sync.WaitGroup
	var errs [2]error
	all.Go(func() {
		errs[0] = each(loading, begun, wires, func(s Step) error { return i.proxies[s.Node].Arm(s.Fault) })
	})
	all.Go(func() {
		errs[1] = each(loading, begun, processes, func(s Step) error {
			return errors.Join(i.revive(ctx), i.process(ctx, loading, s))
		})
	})
	all.Wait()
	return errors.Join(errs[:]...)
}

// each does the steps when they are due, until loading ends.
func each(loading context.Context, begun time.Time, steps []Step, do func(Step) error) error {
	for _, s := range steps {
		xrpc.Sleep(loading, time.Until(begun.Add(s.At)))
		if loading.Err() != nil {
			return nil
		}
		if err := do(s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// process carries one fault out and recovers from it.
func (i *injector) process(ctx, loading context.Context, s Step) (err error) {
	defer Catch(&err)
	i.mu.Lock()
	i.count[string(s.Kind)]++
	i.mu.Unlock()
	n := s.Node
	if s.Kind == KillLeader || s.Kind == SuspendLeader {
		leader := Must(i.cluster.Leader(ctx))
		n = slices.Index(i.cluster.Nodes, leader)
	}
	node := i.cluster.Nodes[n]
	switch s.Kind {
	case CutAll:
		i.proxies[n].CutAll()
		return nil
	case TerminateBackends:
		return i.terminate(ctx, 3)
	case KillBackend:
		return i.killBackend(ctx)
	case KillPostmaster:
		return errors.Join(i.cluster.Postgres.Kill(), i.cluster.Postgres.Restart(ctx))
	case StopPostgres:
		return errors.Join(i.cluster.Postgres.Stop(), i.cluster.Postgres.Start(ctx))
	case KillNode, KillLeader:
		Check(node.Kill())
		xrpc.Sleep(loading, s.For/4)
		return i.startNode(ctx, n)
	case SuspendNode, SuspendLeader:
		Check(node.Suspend())
		xrpc.Sleep(loading, s.For)
		return node.Continue()
	case HoldConnections:
		return i.hold(loading, s.For)
	case FillDisk:
		return i.fillDisk(ctx, loading, s.For)
	case MoveClock:
		return i.cluster.Clocks[n].Set(s.Ahead)
	case KillPgBouncer:
		return errors.Join(i.bouncer.Kill(), i.bouncer.Start(ctx))
	}
	return fmt.Errorf("unknown kind %q", s.Kind)
}

// revive starts PgBouncer again if it has ended by itself.
func (i *injector) revive(ctx context.Context) error {
	if i.bouncer == nil {
		return nil
	}
	log, err := i.bouncer.Revive(ctx)
	if log != "" {
		i.note("PgBouncer has ended by itself: %s", log)
	}
	return err
}

// fillDisk keeps PostgreSQL's disk full for a while. PostgreSQL crashes if it cannot write its log,
// and does not recover while the disk is full.
func (i *injector) fillDisk(ctx, loading context.Context, d time.Duration) error {
	if err := i.disk.Fill(); err != nil {
		return err
	}
	xrpc.Sleep(loading, d)
	return errors.Join(i.disk.Free(), i.cluster.Postgres.AwaitRecovery(ctx))
}

// startLimit is how long a node is started again and again.
const startLimit = time.Minute

// startNode starts a node. A fault can end the node's first connections to the database. Then the
// node ends in order, and startNode starts it again.
func (i *injector) startNode(ctx context.Context, n int) error {
	return xrpc.UntilDone(ctx, startLimit, func() error {
		i.proxies[n].Disarm() // without this, all faults that came while the node was down hit it at once
		if err := i.revive(ctx); err != nil {
			return err
		}
		return i.cluster.Nodes[n].Start(ctx, i.settings)
	})
}

// sessions returns the process ids of the nodes' sessions, in random order.
func (i *injector) sessions(ctx context.Context, db *pgx.Conn) ([]int, error) {
	rows, err := db.Query(ctx, `
		SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name = 'mlsd' ORDER BY pid`)
	if err != nil {
		return nil, err
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	i.rng.Shuffle(len(pids), func(a, b int) { pids[a], pids[b] = pids[b], pids[a] })
	return pids, err
}

// inDatabase runs do on a connection that does not go through a proxy. A crash that PostgreSQL has
// not noticed yet can end the connection. Then inDatabase tries again.
func (i *injector) inDatabase(ctx context.Context, do func(*pgx.Conn) error) error {
	var err error
	for range 10 {
		db, connectErr := i.connect(ctx)
		if connectErr != nil {
			return connectErr
		}
		err = do(db)
		_ = db.Close(context.WithoutCancel(ctx)) // do has returned any error of the connection
		if err == nil {
			return nil
		}
	}
	return err
}

// connect waits for a connection. After a crash PostgreSQL accepts none for a moment.
func (i *injector) connect(ctx context.Context) (db *pgx.Conn, err error) {
	err = xrpc.UntilDone(ctx, 30*time.Second, func() (err error) {
		db, err = pgx.Connect(ctx, i.cluster.Postgres.URL())
		return err
	})
	return db, err
}

// terminate ends 1/oneOf of the nodes' sessions.
func (i *injector) terminate(ctx context.Context, oneOf int) error {
	return i.inDatabase(ctx, func(db *pgx.Conn) (err error) {
		defer Catch(&err)
		pids := Must(i.sessions(ctx, db))
		_, err = db.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid`, pids[:(len(pids)+oneOf-1)/oneOf])
		return err
	})
}

// killBackend kills the process of a session.
func (i *injector) killBackend(ctx context.Context) error {
	var pid int
	err := i.inDatabase(ctx, func(db *pgx.Conn) error {
		pids, err := i.sessions(ctx, db)
		if len(pids) > 0 {
			pid = pids[0]
		}
		return err
	})
	if err != nil || pid == 0 {
		return err
	}
	return testbed.Signal(pid, syscall.SIGKILL)
}

// hold takes all free connections for a while. It first ends the sessions of the nodes, so that the
// nodes need new ones.
func (i *injector) hold(ctx context.Context, d time.Duration) error {
	const most = 500
	if err := i.terminate(ctx, 1); err != nil && ctx.Err() == nil {
		return err
	}
	var held []*pgx.Conn
	defer func() {
		for _, db := range held {
			_ = db.Close(context.WithoutCancel(ctx)) // PostgreSQL may have ended it
		}
	}()
	for len(held) < most {
		db, err := pgx.Connect(ctx, i.cluster.Postgres.URL())
		if err != nil {
			break // no connection is left
		}
		held = append(held, db)
	}
	xrpc.Sleep(ctx, d)
	return nil
}

// heal ends all faults.
func (i *injector) heal(ctx context.Context) (err error) {
	for _, p := range i.proxies {
		p.Heal()
	}
	for _, c := range i.cluster.Clocks {
		err = errors.Join(err, c.Set(0))
	}
	return errors.Join(err, i.revive(ctx))
}

// fired counts the faults that happened, by name.
func (i *injector) fired() map[string]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := map[string]int{}
	for name, n := range i.count {
		all[name] += n
	}
	for _, p := range i.proxies {
		for name, n := range p.Fired() {
			all[name] += n
		}
	}
	return all
}
