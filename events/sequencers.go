package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/migrations"
)

const (
	maxSequencers = 16
	// sequencersSchema is the migration that an mlsd must know to read a stream of several
	// sequencers: migrations/000029_sequencers.up.sql.
	sequencersSchema = 29

	askEvery     = 500 * time.Millisecond // how often the leader of sequencer 0 reads the wanted number
	askAgain     = 10 * time.Second       // until it tries again after it could not change the number
	fillTimeout  = 2 * time.Second        // how long a change of the number waits for reserved places
	fillPoll     = 2 * time.Millisecond   // how often it looks
	balanceEvery = 5 * time.Second        // how often a node counts what it should lead
	// leadTooMany is how long a node leads too many sequencers until it gives one up. It is longer
	// than a dead node counts as live, so that nobody gives one up to a dead node.
	leadTooMany = nodeLease + SyncInterval
	leaveFor    = 3 * time.Second // how long a node leaves a sequencer to others that it has given up
	// settleFor is after how long every live node is in the table nodes, which a crash of the database
	// empties: each writes its row every SyncInterval, and has as long again to do so.
	settleFor = 2 * SyncInterval
)

// layout says which sequencers there are.
type layout struct {
	sequencers int
	// barrier is the newest row that the outbox had when sequencers changed. The rows up to it are
	// sequencer 0's. The others begin when all of these have been moved. So the rows of a convo keep
	// their order, although another sequencer moves the later ones.
	barrier int64
}

// sequencerGroup is what the sequencers of one node share. all[i] is number i. Those that the
// stream does not have are idle.
type sequencerGroup struct {
	all     [maxSequencers]*Sequencer
	number  atomic.Int32 // how many the stream has, as far as this node knows
	share   atomic.Int32 // how many this node leads if all nodes lead equally many; 0: not known
	written atomic.Bool  // Wake was called since the leaders on other nodes were woken

	counted time.Time // when balance last counted; owned by number 0, as is tooMany
	tooMany time.Time // since when this node leads more than its share; zero: it does not

	mu    sync.Mutex // guards leads
	leads int        // how many this node leads

	settle time.Duration // settleFor
	fill   time.Duration // fillTimeout
}

// leading returns how many sequencers this node leads.
func (g *sequencerGroup) leading() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leads
}

// patience is how long a sequencer waits until it tries again to lead. A node that leads its share
// waits for longer, so that others come first.
func (g *sequencerGroup) patience() time.Duration {
	if share := int(g.share.Load()); share > 0 && g.leading() >= share {
		return 2 * electEvery
	}
	return electEvery
}

// setLeads records that the sequencer leads, or no longer leads.
func (s *Sequencer) setLeads(leads bool) {
	s.leads.Store(leads)
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if leads {
		g.leads++
	} else {
		g.leads--
	}
	s.metrics.Leading(g.leads, int(g.number.Load()))
}

// setNumber records how many sequencers the stream has.
func (s *Sequencer) setNumber(number int) {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	g.number.Store(int32(number))
	s.metrics.Leading(g.leads, number)
}

// idle reports whether the stream does not have this sequencer, as far as this node knows.
func (s *Sequencer) idle() bool { return s.number >= int(s.group.number.Load()) }

// lock is the key of the advisory lock of the sequencer's leader.
func (s *Sequencer) lock() int {
	if s.number == 0 {
		return lockLeader
	}
	return lockOthers + s.number
}

// Run works until ctx ends: each sequencer of the node leads, or tries to lead.
func (s *Sequencer) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, one := range s.group.all {
		running.Go(func() { one.run(ctx) })
	}
	running.Wait()
}

// Wake says that this node has possibly written to the outbox. It does not block. Any goroutine can
// call it.
func (s *Sequencer) Wake() {
	s.group.written.Store(true)
	for _, one := range s.group.all[:s.group.number.Load()] {
		one.signal()
	}
}

// wakeLeading wakes the sequencers that this node leads, because another node has written.
func (s *Sequencer) wakeLeading() {
	for _, one := range s.group.all {
		if one.leads.Load() {
			one.signal()
		}
	}
}

// signal makes the sequencer do its next round now.
func (s *Sequencer) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // run has not read the last one yet
	}
}

// lookAfterOthers does what sequencer 0 does for all: its leader changes their number, and on every
// node it wakes the leaders elsewhere, and keeps this node from leading too many.
func (s *Sequencer) lookAfterOthers(ctx context.Context) error {
	g := s.group
	if s.conn != nil && s.reserved == nil && time.Since(s.asked) >= askEvery {
		s.asked = time.Now()
		if err := s.changeNumber(ctx); err != nil {
			return err
		}
	}
	if err := s.balance(ctx); err != nil {
		return err
	}
	if g.leading() >= int(g.number.Load()) || !g.written.Swap(false) {
		return nil
	}
	began := time.Now()
	if err := s.session().QueryRow(ctx, `SELECT pg_notify($1, '')::text`, outboxChannel).Scan(nil); err != nil {
		return fmt.Errorf("wake the leaders: %w", err)
	}
	if s.conn == nil {
		pause(ctx, pauseAfter(time.Since(began)))
	}
	return nil
}

// session is the leader's session. On a node that does not lead it is the pool. A leader must not
// have to wait for a connection of the pool.
func (s *Sequencer) session() pgpool.Queryer {
	if s.conn != nil {
		return s.conn
	}
	return s.db
}

// balance counts, at most every balanceEvery, how many sequencers this node should lead. If it has
// led more for leadTooMany, it gives one up.
func (s *Sequencer) balance(ctx context.Context) error {
	g := s.group
	number := int(g.number.Load())
	if number == 1 {
		g.share.Store(0)
		return nil
	}
	if time.Since(g.counted) < balanceEvery {
		return nil
	}
	g.counted = time.Now()
	var nodes int
	err := s.session().QueryRow(ctx, `SELECT greatest(count(*), 1) FROM nodes WHERE lease_expires_at > clock_timestamp()`).Scan(&nodes)
	if err != nil {
		return fmt.Errorf("count the nodes: %w", err)
	}
	share := (number + nodes - 1) / nodes
	g.share.Store(int32(share))
	switch {
	case g.leading() <= share:
		g.tooMany = time.Time{}
	case g.tooMany.IsZero():
		g.tooMany = time.Now()
	case time.Since(g.tooMany) >= leadTooMany:
		for _, one := range slices.Backward(g.all[:]) {
			if one.leads.Load() {
				one.leave.Store(true)
				one.signal()
				return nil
			}
		}
	}
	return nil
}

// errOldNode says that a node runs which would not read a stream of several sequencers rightly.
var errOldNode = errors.New("a node of an older version is live")

// changeNumber changes the number of sequencers to what the operator wants. Only the leader of
// sequencer 0 does, between its steps. It locks the stream's end, so that the others reserve no more
// places, and waits until those that are reserved are filled. Then no step is under way. The lock on
// the outbox waits for the writers: the rows up to the barrier are committed then, and each later row
// is written by a statement that sees the new number.
func (s *Sequencer) changeNumber(ctx context.Context) error {
	var wanted int
	if err := s.conn.QueryRow(ctx, `SELECT wanted_sequencers FROM stream`).Scan(&wanted); err != nil {
		return fmt.Errorf("read the wanted number of sequencers: %w", err)
	}
	if wanted == s.layout.sequencers {
		return nil
	}
	now, end := s.layout, s.head
	err := pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM stream FOR UPDATE`); err != nil {
			return err
		}
		if err := s.group.checkAllNodes(ctx, tx, wanted); err != nil {
			return err
		}
		if err := s.group.waitForPlaces(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '100ms'; LOCK TABLE outbox IN SHARE MODE`); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `
			UPDATE stream SET sequencers = wanted_sequencers, barrier = (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox_id_seq)
			RETURNING head, sequencers, barrier, pg_notify($1, '')::text`, outboxChannel).Scan(&end, &now.sequencers, &now.barrier, nil)
		if err != nil {
			return err
		}
		return migrations.SetRequired(ctx, tx, sequencersSchema, now.sequencers > 1)
	})
	if pgpool.LockTimeout(err) || errors.Is(err, errStillReserved) || errors.Is(err, errNotSettled) {
		return nil // it tries again
	}
	if errors.Is(err, errOldNode) {
		s.log.WarnContext(ctx, "the number of sequencers cannot be changed", "wanted", wanted, "error", err)
		s.asked = time.Now().Add(askAgain - askEvery)
		return nil
	}
	if err != nil {
		return fmt.Errorf("change the number of sequencers: %w", err)
	}
	s.log.InfoContext(ctx, "the number of sequencers has changed", "from", s.layout.sequencers, "to", now.sequencers, "after", end)
	s.layout, s.head = now, end
	s.setNumber(now.sequencers)
	s.group.counted = time.Time{}
	for _, one := range s.group.all[1:] {
		one.signal()
	}
	return nil
}

// errNotSettled says that live nodes are possibly not in the table nodes yet.
var errNotSettled = errors.New("the database has just started")

// checkAllNodes is checkNodes that sees all live nodes. A crash of the database empties the table
// nodes, and ends all sessions. So while a session is older than settleFor, all nodes are in it.
func (g *sequencerGroup) checkAllNodes(ctx context.Context, tx pgx.Tx, wanted int) error {
	if wanted == 1 {
		return nil
	}
	var settled bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' AND backend_start <= clock_timestamp() - $1::interval)`,
		g.settle).Scan(&settled)
	switch {
	case err != nil:
		return fmt.Errorf("look for an old session: %w", err)
	case !settled:
		return errNotSettled
	}
	return checkNodes(ctx, tx, wanted)
}

// checkNodes returns errOldNode if there are to be several sequencers, and a node of a version runs
// that knows only one.
func checkNodes(ctx context.Context, db pgpool.Queryer, wanted int) error {
	if wanted == 1 {
		return nil
	}
	nodes, err := LiveNodes(ctx, db)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Schema < sequencersSchema {
			return fmt.Errorf("%w: node %s knows migrations up to %d, and several sequencers need %d", errOldNode, n.ID, n.Schema, sequencersSchema)
		}
	}
	return nil
}

// errStillReserved says that places were not filled in time: their sequencer has no
// leader at the moment.
var errStillReserved = errors.New("places are still reserved")

// waitForPlaces waits until no places are reserved. The caller has locked the end of the stream.
func (g *sequencerGroup) waitForPlaces(ctx context.Context, tx pgx.Tx) error {
	for began := time.Now(); ; pause(ctx, fillPoll) {
		var open bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM reserved_places)`).Scan(&open); err != nil {
			return err
		}
		switch {
		case !open:
			return nil
		case time.Since(began) > g.fill:
			return errStillReserved
		}
	}
}

// Sequencers returns how many sequencers the stream has, and how many an operator wants.
func Sequencers(ctx context.Context, db pgpool.Queryer) (number, wanted int, err error) {
	if err := db.QueryRow(ctx, `SELECT sequencers, wanted_sequencers FROM stream`).Scan(&number, &wanted); err != nil {
		return 0, 0, fmt.Errorf("read the number of sequencers: %w", err)
	}
	return number, wanted, nil
}

// WantSequencers asks the leader of sequencer 0 to change the number of sequencers, from 1 to 16. It
// fails if a live node is of a version that knows only one.
func WantSequencers(ctx context.Context, db *pgx.Conn, wanted int) error {
	if wanted < 1 || wanted > maxSequencers {
		return fmt.Errorf("a stream has 1 to %d sequencers", maxSequencers)
	}
	if err := checkNodes(ctx, db, wanted); err != nil {
		return err
	}
	_, err := db.Exec(ctx, `WITH asked AS (UPDATE stream SET wanted_sequencers = $1) SELECT pg_notify($2, '')`, wanted, outboxChannel)
	if err != nil {
		return fmt.Errorf("ask for %d sequencers: %w", wanted, err)
	}
	return nil
}
