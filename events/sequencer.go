package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

// NSIDSequencer names the sequencer's transactions for failpoints.
const NSIDSequencer = "mlsd.events.sequencer"

const (
	stepLimit   = 2000                  // rows of the outbox that one transaction moves
	stepFull    = 40                    // after a step with more events, the pause is twice as long
	minPause    = time.Millisecond      // shortest pause after a step that moved events
	maxPause    = 10 * time.Millisecond // longest pause, even after a slow step
	stepTimeout = 10 * time.Second      // time limit of one round

	leaderPoll  = time.Second            // how often the leader reads the outbox without a wake-up
	electEvery  = 500 * time.Millisecond // how often another node tries to lead
	electSoon   = 20 * time.Millisecond  // until a node that ended the leader's session tries again
	leaderStall = 2 * time.Second        // a leader that is idle for longer is considered dead
	// How often another node checks whether the leader is dead, which reads all sessions and locks.
	lookEvery = time.Second

	maintainEvery = 10 * time.Minute // how often the partitions are maintained
	maintainAgain = time.Minute      // until the next try after maintenance failed
)

const checkViolation = "23514"

// Sequencer moves committed rows from the outbox into the stream. Every node runs a Sequencer. One
// of them leads, and the others wake the leader after a commit on their node.
//
// The leader works in the session that holds an advisory lock, so a node that has lost the lock
// cannot write.
//
// A step deletes the rows that it moves. It skips no row, however long the row's transaction took,
// because it starts from a floor, and no row can still appear below the floor. A row gets its place
// after its commit, so no event appears before a place that a reader has passed. Writes to one
// convo wait for its row lock, so their outbox ids and their places are in the order of the writes.
//
// While the outbox is empty, a message that is alone in its transaction gets its place there
// (place.sql). A transaction that gives places locks the row of stream until its COMMIT.
type Sequencer struct {
	db      *pgxpool.Pool
	log     *slog.Logger
	metrics Metrics
	faults  *failpoint.Set
	moved   func(int64)      // called when the stream has grown, with the newest place
	node    func() uuid.UUID // nil means that the id is not known
	onDump  Hook
	wake    worker.Trigger // sent when the outbox may have grown

	leads   atomic.Bool  // conn is not nil
	written atomic.Bool  // Wake was called since this node last woke the leader on another node
	seen    atomic.Int64 // the newest place that messages have got at once, as far as this node knows

	conn        *pgx.Conn // its session holds the lock; nil unless this node leads
	head        int64     // where the stream ended when this node last read its end
	generation  int64     // generation of the stream at that time
	floor       floor     // floor of the outbox
	partitions  partitions
	tried       time.Time // when this node last tried to lead
	looked      time.Time // when this node last looked at the leader's session
	maintainDue time.Time // when the partitions are due
}

// SequencerConfig configures a Sequencer.
type SequencerConfig struct {
	DB        *pgxpool.Pool
	Log       *slog.Logger
	Metrics   Metrics
	Retention time.Duration  // how long events are kept, at least
	Moved     func(int64)    // called after each step that moved events, with the newest place; it must not block
	Faults    *failpoint.Set // nil means none
	OnDump    Hook           // nil means none
	// Node returns the id of this node. A step notifies other nodes only if there are any. If Node
	// is nil, every step notifies.
	Node func() uuid.UUID
}

// NewSequencer returns a sequencer.
func NewSequencer(c SequencerConfig) *Sequencer {
	return &Sequencer{
		db: c.DB, log: c.Log, metrics: c.Metrics, moved: c.Moved, node: c.Node, faults: c.Faults,
		onDump: c.OnDump, wake: worker.NewTrigger(), partitions: partitions{log: c.Log, retention: c.Retention},
	}
}

// Wake says that this node may have written to the outbox. It does not block. Any goroutine can
// call it.
func (s *Sequencer) Wake() {
	s.written.Store(true)
	s.wake.Send()
}

// seePlace says that the stream has reached a place without a step of this sequencer. It does not
// block.
func (s *Sequencer) seePlace(place int64) {
	for {
		known := s.seen.Load()
		if place <= known || s.seen.CompareAndSwap(known, place) {
			return
		}
	}
}

// wakeLeading wakes the sequencer if this node leads, because another node has written.
func (s *Sequencer) wakeLeading() {
	if s.leads.Load() {
		s.wake.Send()
	}
}

// Run leads until ctx ends, or, while another node leads, tries to lead and wakes the leader. It is
// not a worker.Every, because its waits depend on what a round did.
func (s *Sequencer) Run(ctx context.Context) {
	defer s.resign()
	for ctx.Err() == nil {
		began := time.Now()
		moved, err := s.round(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the sequencer failed", "leads", s.conn != nil, "error", err)
			s.resign()
			worker.Pause(ctx, electEvery)
			continue
		}
		if moved > 0 {
			took := time.Since(began)
			if moved > stepFull { // with fewer steps, senders have more of the database
				took *= 2
			}
			worker.Pause(ctx, pauseAfter(took))
		}
		if moved < stepLimit { // it moved all rows that it could see; later rows send a wake-up
			s.wait(ctx)
		}
	}
}

// pauseAfter returns the pause after a step: short after a quick step, longer on a busy database.
func pauseAfter(took time.Duration) time.Duration { return min(max(took, minPause), maxPause) }

// wait waits for a wake-up or a timeout.
func (s *Sequencer) wait(ctx context.Context) {
	d := max(0, electEvery-time.Since(s.tried))
	if s.conn != nil {
		d = leaderPoll
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// round does one round, as leader or as another node, and returns how many events it moved.
func (s *Sequencer) round(ctx context.Context) (moved int, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if s.conn == nil && time.Since(s.tried) >= electEvery {
		s.tried = time.Now()
		if err := s.elect(ctx); err != nil {
			return 0, err
		}
	}
	if s.conn == nil {
		return 0, s.wakeLeader(ctx)
	}
	if !time.Now().Before(s.maintainDue) {
		s.maintainDue = time.Now().Add(maintainEvery)
		// Events can be moved even after this error, because today's partition was created days
		// ago.
		if err := s.partitions.maintain(ctx, s.conn); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the stream could not be maintained", "error", err)
			s.maintainDue = time.Now().Add(maintainAgain)
		}
	}
	if err := s.floor.seek(ctx, s.conn); err != nil {
		return 0, err
	}
	moved, err = s.step(ctx)
	if errors.Is(err, errWentBack) {
		if err = s.adopt(ctx); err == nil && s.conn != nil {
			moved, err = s.step(ctx)
		}
	}
	if err == nil && s.floor.ended {
		err = s.floor.raise(ctx, s.conn)
	}
	if pgpool.Code(err) == checkViolation { // there is no partition for today
		s.maintainDue = time.Time{}
	}
	return moved, err
}

// wakeLeader wakes the leader on another node if this node may have written since it last woke the
// leader.
func (s *Sequencer) wakeLeader(ctx context.Context) error {
	if !s.written.Swap(false) {
		return nil
	}
	began := time.Now()
	if _, err := s.db.Exec(ctx, `SELECT pg_notify($1, '')`, outboxChannel); err != nil {
		return fmt.Errorf("wake the leader: %w", err)
	}
	worker.Pause(ctx, pauseAfter(time.Since(began)))
	return nil
}

// setLeads records whether this node leads.
func (s *Sequencer) setLeads(leads bool) {
	s.leads.Store(leads)
	s.metrics.Leading(leads)
}

// elect takes the lock if the lock is free, and ends a stalled leader's session.
func (s *Sequencer) elect(ctx context.Context) error {
	conn, err := pgpool.LockSequencer.Hold(ctx, s.db)
	if err != nil {
		return fmt.Errorf("try to lead: %w", err)
	}
	if conn == nil {
		if time.Since(s.looked) < lookEvery-electEvery/2 {
			return nil
		}
		s.looked = time.Now()
		ended, err := s.endStalledLeader(ctx)
		if ended { // the lock will soon be free
			s.tried = time.Now().Add(electSoon - electEvery)
		}
		return err
	}
	s.conn = conn
	s.maintainDue = time.Time{}
	s.setLeads(true)
	s.log.InfoContext(ctx, "this node leads the sequencer")
	return s.adopt(ctx)
}

// errWentBack says that the stream has a new generation, or ends before the leader's newest place.
var errWentBack = errors.New("the stream has gone back, or has a new generation")

// adopt records the generation of the session, and where the stream ends. The timeline of a
// PostgreSQL does not change while it accepts writes, so a new leader asks only once. If the stream
// has gone back since this node last saw it, adopt begins a generation. Then it allows the places
// that place.sql gives, until this server ends: another one may have a stream that has gone back.
func (s *Sequencer) adopt(ctx context.Context) error {
	now, err := readStream(ctx, s.conn)
	if err != nil {
		return err
	}
	all, err := checkServer(ctx, s.conn, now.of, s.onDump)
	if err != nil {
		return err
	}
	newest := all.newest()
	if s.head = max(s.head, s.seen.Swap(0)); newest.id == s.generation && now.head < s.head {
		if err := beginGeneration(ctx, s.conn, newest.id, newest.by, causeWentBack, nil); err != nil {
			return err
		}
	}
	if now, err = readStream(ctx, s.conn); err != nil {
		return err
	}
	if id := now.of.newest().id; id != s.generation {
		s.log.InfoContext(ctx, "the stream's generation", "generation", id, "after", now.of.newest().after)
		s.generation = id
	}
	s.head, s.floor = now.head, floor{at: now.floor}
	_, err = s.conn.Exec(ctx, `
		UPDATE stream SET adopted_start = pg_postmaster_start_time(), adopted_table = tableoid
		WHERE (adopted_start, adopted_table) IS DISTINCT FROM (pg_postmaster_start_time(), tableoid)`)
	return errs.Wrap(err, "adopt the stream")
}

// endStalledLeader ends the session of a leader that was idle for longer than leaderStall. A
// working leader runs a statement every leaderPoll, so the process of an idle leader was stopped,
// or its network is lost.
func (s *Sequencer) endStalledLeader(ctx context.Context) (ended bool, err error) {
	tag, err := s.db.Exec(ctx, `
		SELECT pg_terminate_backend(a.pid)
		FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND (l.classid, l.objid, l.objsubid) = ($1::bigint::oid, $2::bigint::oid,
			2)
			AND a.datname = current_database() AND l.database = a.datid
			AND a.state <> 'active' AND a.state_change < clock_timestamp() - $3::interval`, int64(pgpool.NodeLockSpace),
		int64(pgpool.LockSequencer), leaderStall)
	return tag.RowsAffected() > 0, errs.Wrap(err, "check the leader's session")
}

// resign gives up the lead: it closes the session that holds the lock.
func (s *Sequencer) resign() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.conn.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		s.log.Debug("the sequencer's connection was closed already", "error", err)
	}
	s.conn = nil
	s.setLeads(false)
}

// self returns the id of this node, or nil if it is not known.
func (s *Sequencer) self() *uuid.UUID {
	if s.node == nil {
		return nil
	}
	id := s.node()
	return &id
}

// step moves up to stepLimit committed rows in one transaction, and returns the number of their
// events. The messages of one row get consecutive places. If the answer to the COMMIT is lost, no
// event is moved twice, because the transaction deleted the rows from the outbox. All events of a
// step get the same day, which never goes back.
//
// A message that was alone has its place from its own transaction (place.sql), so step first
// locks the end of the stream. It moves nothing without that lock.
//
// step returns errWentBack if the stream has another generation, or ends before the place where it
// ended when this node last read it.
func (s *Sequencer) step(ctx context.Context) (n int, err error) {
	var waited time.Duration
	var head, generation int64
	s.head = max(s.head, s.seen.Swap(0))
	batch := &pgx.Batch{}
	batch.Queue(`SELECT FROM stream WHERE EXISTS (SELECT FROM outbox WHERE id > $1) FOR NO KEY UPDATE`, s.floor.at)
	batch.Queue(`
		WITH moved AS (
			DELETE FROM outbox WHERE id = ANY(ARRAY(
				SELECT id FROM outbox
				WHERE id > $6 AND EXISTS (SELECT FROM stream WHERE head >= $4 AND xmax = pg_current_xact_id_if_assigned()::xid)
					AND $5 = (SELECT max(id) FROM generations)
				ORDER BY id LIMIT $1))
			RETURNING *
		), today AS (
			SELECT greatest(day, ((clock_timestamp() + $2::interval) AT TIME ZONE 'UTC')::date) AS day, head,
				(SELECT max(id) FROM generations) AS generation
			FROM stream
		), placed AS (
			INSERT INTO events (stream_seq, day, kind, convo_id, seq, did, size, detail, created_at, convo_ids, seqs, sizes)
			SELECT today.head + sum(coalesce(cardinality(m.seqs), 1)) OVER (ORDER BY m.id), today.day,
				m.kind, m.convo_id, m.seq, m.did, m.size, m.detail, m.created_at, m.convo_ids, m.seqs, m.sizes
			FROM moved m, today
			RETURNING stream_seq, created_at
		), summary AS (
			SELECT max(stream_seq) AS last, clock_timestamp() - min(created_at) AS waited FROM placed
		), new_day AS (
			INSERT INTO event_days (day, first_seq) SELECT today.day, today.head + 1 FROM summary, today WHERE last IS NOT NULL
				ON CONFLICT DO NOTHING
		), advanced AS (
			UPDATE stream SET head = summary.last, day = today.day FROM summary, today WHERE last IS NOT NULL
			RETURNING CASE WHEN $7::uuid IS NULL OR EXISTS (SELECT FROM nodes WHERE id <> $7) THEN pg_notify($3,
				summary.last::text) END
		)
		SELECT coalesce(last - today.head, 0), coalesce(waited, '0'), today.head, today.generation
		FROM summary LEFT JOIN advanced ON true, today`,
		stepLimit, s.partitions.ahead, eventsChannel, s.head, s.generation, s.floor.at, s.self()).QueryRow(
		func(row pgx.Row) error { return row.Scan(&n, &waited, &head, &generation) })
	if err := s.conn.SendBatch(ctx, batch).Close(); err != nil {
		return 0, fmt.Errorf("move events: %w", err)
	}
	if head < s.head || generation != s.generation {
		return 0, errWentBack
	}
	s.head = head + int64(n)
	if n == 0 {
		return 0, nil
	}
	s.floor.moved = true
	if err := s.faults.Hit(ctx, failpoint.AfterCommit, NSIDSequencer); err != nil {
		return 0, err
	}
	s.metrics.Sequenced(n, waited)
	s.moved(s.head)
	return n, nil
}
