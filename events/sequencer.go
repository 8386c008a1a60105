package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
)

// NSIDSequencer names the sequencer's transactions for failpoints.
const NSIDSequencer = "mlsd.events.sequencer"

const (
	stepLimit   = 2000                   // events of one transaction
	stepPace    = 5 * time.Millisecond   // from one step to the next while there is always something to do
	stepFull    = 40                     // events of a step that is worth waiting for twice as long
	stepTimeout = 10 * time.Second       // of one step
	leaderPoll  = 250 * time.Millisecond // the net under the leader's wakes
	electEvery  = 500 * time.Millisecond // how often the others try to lead
	upkeepEvery = 10 * time.Minute       // of the partitions
	upkeepAgain = time.Minute            // after it has failed
)

const checkViolation = "23514"

// Channels of NOTIFY.
const (
	outboxChannel = "mlsd_outbox" // there is something in the outbox
	eventsChannel = "mlsd_events" // there is something in the stream
)

// The sequencer's leader holds this advisory lock in the session in which it works. Whoever has lost the session has lost both: there
// is no leader that only believes it is one.
const (
	lockSpace  = 0x6d6c7364 // "mlsd"
	lockLeader = 1
)

// Sequencer moves what is committed from the outbox into the stream. Every node runs one; one of them leads, and the others pass on
// to it what their own node has committed.
//
// A row of the outbox is taken when it is seen and gone when it is moved, so none is skipped, however long its transaction took. Its
// place is given when it is moved, which is after it was committed: nothing can come to stand behind a reader. Where one write waited
// for another, as those of a convo do for the row lock, it sees the other's and has the higher id, and comes after it.
type Sequencer struct {
	db        *pgxpool.Pool
	log       *slog.Logger
	metrics   Metrics
	faults    *failpoint.Set
	retention time.Duration
	moved     func()        // the stream has grown
	wake      chan struct{} // the outbox has, or may have
	ahead     time.Duration // of the database's clock: the tests' days go by faster

	conn      *pgx.Conn // whose session holds the lock; nil unless this node leads
	tried     time.Time // to lead
	upkeepDue time.Time
}

// SequencerConfig is what a Sequencer is made of.
type SequencerConfig struct {
	DB        *pgxpool.Pool
	Log       *slog.Logger
	Metrics   Metrics
	Retention time.Duration  // how long events are kept, at least
	Moved     func()         // called after each step that moved something; it must not block
	Faults    *failpoint.Set // may be nil
}

// NewSequencer returns a sequencer.
func NewSequencer(c SequencerConfig) *Sequencer {
	return &Sequencer{
		db: c.DB, log: c.Log, metrics: c.Metrics, retention: c.Retention, moved: c.Moved, faults: c.Faults, wake: make(chan struct{}, 1),
	}
}

// Wake says that the outbox may have something new. It does not block, and may be called by anybody.
func (s *Sequencer) Wake() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake already
	}
}

// Run leads, or tries to and passes on what it is told, until ctx ends.
func (s *Sequencer) Run(ctx context.Context) {
	defer s.resign()
	for woken := true; ctx.Err() == nil; {
		moved, err := s.round(ctx, woken)
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the sequencer failed", "leads", s.conn != nil, "error", err)
			s.resign()
			pause(ctx, electEvery)
			continue
		}
		switch {
		case moved > stepFull:
			pause(ctx, 2*stepPace) // events come so fast that each step costs the senders something
		case moved > 0:
			pause(ctx, stepPace)
		}
		woken = moved > 0 || s.wait(ctx)
	}
}

// wait waits for a wake, or as long as one may do without, and says which it was.
func (s *Sequencer) wait(ctx context.Context) (woken bool) {
	d := max(0, electEvery-time.Since(s.tried))
	if s.conn != nil {
		d = leaderPoll
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.wake:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// pause waits for d, whatever happens meanwhile.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// round does what there is to do, and says how many events it has moved. The leader moves events; the others try to lead, and pass on
// what woke them.
func (s *Sequencer) round(ctx context.Context, woken bool) (moved int, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if s.conn == nil && time.Since(s.tried) >= electEvery {
		s.tried = time.Now()
		if err := s.elect(ctx); err != nil {
			return 0, err
		}
	}
	if s.conn == nil {
		if woken {
			err = s.passOn(ctx)
			pause(ctx, stepPace)
		}
		return 0, err
	}
	if !time.Now().Before(s.upkeepDue) {
		s.upkeepDue = time.Now().Add(upkeepEvery)
		if err := s.upkeep(ctx); err != nil { // today's partition has been there for days: nobody waits for this
			s.log.WarnContext(ctx, "the days of the stream were not looked after", "error", err)
			s.upkeepDue = time.Now().Add(upkeepAgain)
		}
	}
	moved, err = s.step(ctx)
	if pgpool.Code(err) == checkViolation { // there is no partition for today, after all
		s.upkeepDue = time.Time{}
	}
	return moved, err
}

// elect takes the lock if nobody has it.
func (s *Sequencer) elect(ctx context.Context) error {
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	var leads bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, lockSpace, lockLeader).Scan(&leads); err != nil {
		conn.Release()
		return fmt.Errorf("try to lead: %w", err)
	}
	if !leads {
		deposed, err := depose(ctx, conn)
		conn.Release()
		if deposed { // its lock is about to be free
			s.tried = time.Now().Add(soon - electEvery)
		}
		return err
	}
	s.conn = conn.Hijack() // the pool would give the lock away with the connection
	s.upkeepDue = time.Time{}
	s.metrics.Leading(true)
	s.log.InfoContext(ctx, "this node leads the sequencer")
	return nil
}

const (
	frozen = time.Second // how long a leader may say nothing; it asks for work at least every leaderPoll
	soon   = 20 * time.Millisecond
)

// depose ends the session of a leader that holds the lock and does nothing: its process has been stopped, or its network is gone. In
// what it had begun it is not disturbed.
func depose(ctx context.Context, conn *pgxpool.Conn) (deposed bool, err error) {
	tag, err := conn.Exec(ctx, `
		SELECT pg_terminate_backend(a.pid)
		FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND (l.classid, l.objid, l.objsubid) = ($1::bigint::oid, $2::bigint::oid, 2)
			AND a.datname = current_database() AND l.database = a.datid
			AND a.state <> 'active' AND a.state_change < clock_timestamp() - $3::interval`, int64(lockSpace), int64(lockLeader), frozen)
	if err != nil {
		return false, fmt.Errorf("look after the leader: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}

// resign gives up the lock with the session.
func (s *Sequencer) resign() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.conn.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		s.log.Debug("the sequencer's connection was gone already", "error", err)
	}
	s.conn = nil
	s.metrics.Leading(false)
}

// passOn tells the leader, if anything was to be told since the last time.
func (s *Sequencer) passOn(ctx context.Context) error {
	if _, err := s.db.Exec(ctx, `SELECT pg_notify($1, '')`, outboxChannel); err != nil {
		return fmt.Errorf("tell the leader: %w", err)
	}
	return nil
}

// step moves what is committed, in one transaction, and returns how much that was. That an event is moved again after a lost answer
// cannot be: it is not in the outbox any more.
func (s *Sequencer) step(ctx context.Context) (n int, err error) {
	var waited time.Duration
	err = s.conn.QueryRow(ctx, `
		WITH moved AS (
			DELETE FROM outbox WHERE id = ANY(ARRAY(SELECT id FROM outbox ORDER BY id LIMIT $1)) RETURNING *
		), today AS (
			SELECT greatest(day, ((clock_timestamp() + $2::interval) AT TIME ZONE 'UTC')::date) AS day, head FROM stream
		), placed AS (
			INSERT INTO events (stream_seq, day, kind, convo_id, seq, did, size, detail, created_at)
			SELECT today.head + row_number() OVER (ORDER BY m.id), today.day, m.kind, m.convo_id, m.seq, m.did, m.size, m.detail, m.created_at
			FROM moved m, today
			RETURNING stream_seq, created_at
		), grown AS (
			SELECT count(*) AS n, min(stream_seq) AS first, max(stream_seq) AS last, clock_timestamp() - min(created_at) AS waited FROM placed
		), begun AS (
			INSERT INTO event_days (day, first_seq) SELECT today.day, grown.first FROM grown, today WHERE n > 0 ON CONFLICT DO NOTHING
		), ended AS (
			UPDATE stream SET head = grown.last, day = today.day FROM grown, today WHERE n > 0
			RETURNING pg_notify($3, grown.last::text)
		)
		SELECT n, coalesce(waited, '0') FROM grown LEFT JOIN ended ON true`, stepLimit, s.ahead, eventsChannel).Scan(&n, &waited)
	if err != nil {
		return 0, fmt.Errorf("move events: %w", err)
	}
	if n == 0 {
		return 0, nil
	}
	if err := s.faults.Hit(ctx, failpoint.AfterCommit, NSIDSequencer); err != nil {
		return 0, err
	}
	s.metrics.Sequenced(n, waited)
	s.moved()
	return n, nil
}
