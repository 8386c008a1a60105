package torture

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"mlsd/clientsim/torture/pgwire"
	"mlsd/clientsim/traffic"
)

// Kind is what happens to a process.
type Kind string

const (
	// Wire is a fault of one connection between a node and PostgreSQL.
	Wire Kind = "wire"
	// CutAll ends all connections of a node to PostgreSQL.
	CutAll Kind = "cut all connections"
	// TerminateBackends makes PostgreSQL end some sessions of the nodes.
	TerminateBackends Kind = "pg_terminate_backend"
	// KillBackend kills a session's process with SIGKILL. PostgreSQL then recovers from the crash.
	KillBackend Kind = "kill -9 of a backend"
	// KillPostmaster kills PostgreSQL with SIGKILL and starts it again.
	KillPostmaster Kind = "kill -9 of the postmaster"
	// StopPostgres stops PostgreSQL in order and starts it again.
	StopPostgres Kind = "restart of PostgreSQL"
	// KillNode kills a node with SIGKILL and starts it again.
	KillNode Kind = "kill -9 of a node"
	// KillLeader kills the node that sequences events, and starts it again.
	KillLeader Kind = "kill -9 of the leader"
	// SuspendNode stops a node's process for a while (SIGSTOP, SIGCONT).
	SuspendNode Kind = "SIGSTOP of a node"
	// SuspendLeader stops the node that sequences events for a while.
	SuspendLeader Kind = "SIGSTOP of the leader"
	// HoldConnections takes all free connections of PostgreSQL for a while.
	HoldConnections Kind = "out of connections"
	// FillDisk lets PostgreSQL's disk be full for a while.
	FillDisk Kind = "disk full"
	// MoveClock makes a node's clock wrong, or right again. The clock stays so until the next
	// MoveClock.
	MoveClock Kind = "clock of a node moved"
	// KillPgBouncer kills PgBouncer with SIGKILL and starts it again.
	KillPgBouncer Kind = "kill -9 of PgBouncer"
)

// processKinds are the kinds besides Wire.
func processKinds() []Kind {
	return []Kind{
		CutAll, TerminateBackends, TerminateBackends, KillBackend, KillPostmaster, StopPostgres, KillNode, KillLeader,
		SuspendNode, SuspendLeader, HoldConnections, FillDisk, MoveClock, MoveClock, KillPgBouncer,
	}
}

// clockErrors are the possible errors of a node's clock. Tokens live for a minute, and servers
// accept 30 seconds of difference.
func clockErrors() []time.Duration {
	return []time.Duration{-time.Hour, -45 * time.Second, -3 * time.Second, 0, 3 * time.Second, 45 * time.Second,
		time.Hour}
}

// Step is one fault of a plan.
type Step struct {
	At    time.Duration // time since the load began
	Kind  Kind
	Node  int           // the node, if the fault concerns one node
	For   time.Duration // how long the fault lasts; 0 if it has no length
	Fault pgwire.Fault  // for Wire
	Ahead time.Duration // for MoveClock: the error of the clock from now on
}

func (s Step) String() string {
	what := string(s.Kind)
	if s.Kind == Wire {
		what = s.Fault.Name()
	}
	if s.Kind == MoveClock {
		what += " to " + s.Ahead.String()
	}
	return fmt.Sprintf("%7s node %d: %s for %s", s.At.Round(time.Millisecond), s.Node+1, what,
		(s.For + s.Fault.For).Round(time.Millisecond))
}

// How often faults begin, on average.
const (
	wireEvery    = 100 * time.Millisecond
	processEvery = 3 * time.Second
)

// NewPlan draws a plan from a seed. The same arguments give the same plan. Which connection or
// session a fault hits depends on what runs at that time.
func NewPlan(seed uint64, length time.Duration, nodes int) []Step {
	rng := rand.New(rand.NewPCG(seed, 0xfa17))
	var plan []Step
	for at := next(rng, wireEvery); at < length; at += next(rng, wireEvery) {
		plan = append(plan, Step{At: at, Kind: Wire, Node: rng.IntN(nodes), Fault: wireFault(rng)})
	}
	kinds := processKinds()
	for at := next(rng, processEvery); at < length; at += next(rng, processEvery) {
		s := Step{At: at, Kind: kinds[rng.IntN(len(kinds))], Node: rng.IntN(nodes),
			For: traffic.Between(rng, 100*time.Millisecond, 4*time.Second)}
		if s.Kind == MoveClock {
			s.Ahead = clockErrors()[rng.IntN(len(clockErrors()))]
		}
		plan = append(plan, s)
	}
	slices.SortStableFunc(plan, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return plan
}

// wireFault draws a fault that can happen. Half of the faults are around a COMMIT.
func wireFault(rng *rand.Rand) pgwire.Fault {
	actions, points := pgwire.Actions(), pgwire.Points()
	if rng.IntN(2) == 0 {
		points = []pgwire.Point{pgwire.Commit, pgwire.Committed}
	}
	for {
		f := pgwire.Fault{
			Point: points[rng.IntN(len(points))], Action: actions[rng.IntN(len(actions))],
			For: traffic.Between(rng, 10*time.Millisecond, 500*time.Millisecond),
		}
		if rng.IntN(8) == 0 { // longer than the nodes' lock timeouts
			f.For = traffic.Between(rng, time.Second, 6*time.Second)
		}
		if f.Valid() {
			return f
		}
	}
}

func next(rng *rand.Rand, mean time.Duration) time.Duration {
	return time.Duration(rng.ExpFloat64() * float64(mean))
}
