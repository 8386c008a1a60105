package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/failpoint"
)

// places are a row of the table reserved_places: n places of the stream behind after, for the events
// of the rows that the row names.
type places struct {
	after int64
	n     int
	day   time.Time // of the events that fill them
}

// errNotFilled says that a sequencer could not fill exactly the places that it had reserved.
var errNotFilled = errors.New("the reserved places and the rows of the outbox do not fit: rows were deleted by hand, or the database is damaged; restore it")

// stepBesideOthers is the step of one of several sequencers. To give each event its place, all of
// them would have to wait for each other while they write events. So a step has two transactions:
// the first one reserves places for the rows that wait, under the lock of the stream's end. It is
// short, and does not wait for the disk. The second one fills them. Readers do not read beyond the
// first place that is not filled. Thus the stream stays one, dense, with one order.
//
// A sequencer that dies in between leaves a row of reserved_places. The next leader fills these
// places before it does anything else. The rows for them are still there, because only the leader
// of their sequencer moves them. A row that is committed meanwhile, with a lower id, comes later. It
// is of another convo, because writes to one convo wait for each other.
func (s *Sequencer) stepBesideOthers(ctx context.Context) (n int, err error) {
	if s.reserved == nil {
		if s.reserved, err = s.reserve(ctx); err != nil || s.reserved == nil {
			return 0, err
		}
		if err := s.faults.Hit(ctx, failpoint.BeforeCommit, NSIDSequencer); err != nil {
			return 0, err
		}
	}
	waited, err := s.fill(ctx, *s.reserved)
	if err != nil {
		return 0, err
	}
	n, s.head, s.reserved = s.reserved.n, s.reserved.after+int64(s.reserved.n), nil
	s.floor.moved = true
	if err := s.faults.Hit(ctx, failpoint.AfterCommit, NSIDSequencer); err != nil {
		return 0, err
	}
	s.metrics.Sequenced(n, waited)
	s.moved(s.head)
	return n, nil
}

// reserve reserves places for the rows of this sequencer that wait, at most stepLimit. It returns
// nil if there are none. It reserves nothing and returns errWentBack if the stream ends before the
// place where this sequencer has seen it, or has another generation or another number of
// sequencers than this sequencer knows.
//
// The day is given with the places. So it never goes back along the stream.
//
// The COMMIT does not wait for the disk. What fills the places is committed after it, and so are
// the places that others reserve behind them. So PostgreSQL keeps it if it keeps any of these.
func (s *Sequencer) reserve(ctx context.Context) (*places, error) {
	var end, generation int64
	var now layout
	var after *int64
	var n *int
	var day *time.Time
	err := s.conn.QueryRow(ctx, `
		WITH known AS MATERIALIZED (
			SELECT head, floor, sequencers, barrier, (SELECT max(id) FROM generations) AS generation FROM stream
		), waiting AS MATERIALIZED (
			SELECT array_agg(id) AS ids, sum(coalesce(cardinality(seqs), 1)) AS n FROM (
				SELECT id, seqs FROM outbox
				WHERE id > (SELECT floor FROM known)
					AND CASE WHEN id <= $3 THEN 0 ELSE outbox_sequencer(coalesce(convo_id, convo_ids[1]), did, $2) END = $1
					AND ($1 = 0 OR NOT EXISTS (SELECT FROM outbox WHERE id > (SELECT floor FROM known) AND id <= $3))
				ORDER BY id LIMIT $4) w
		), reserved AS (
			UPDATE stream s SET head = s.head + w.n, day = greatest(s.day, ((clock_timestamp() + $5::interval) AT TIME ZONE 'UTC')::date)
			FROM waiting w
			WHERE w.n > 0 AND s.sequencers = $2 AND s.barrier = $3 AND s.head >= $6 AND (SELECT generation FROM known) = $7
			RETURNING s.head - w.n AS after_seq, w.n, w.ids, s.day
		), new_day AS (
			INSERT INTO event_days (day, first_seq) SELECT day, after_seq + 1 FROM reserved ON CONFLICT DO NOTHING
		), recorded AS (
			INSERT INTO reserved_places (after_seq, n, ids, sequencer, day) SELECT after_seq, n, ids, $1, day FROM reserved
		)
		SELECT k.head, k.generation, k.sequencers, k.barrier, r.after_seq, r.n, r.day
		FROM known k LEFT JOIN reserved r ON true, set_config('synchronous_commit', 'off', true)`,
		s.number, s.layout.sequencers, s.layout.barrier, stepLimit, s.ahead, s.head, s.generation).
		Scan(&end, &generation, &now.sequencers, &now.barrier, &after, &n, &day)
	if err != nil {
		return nil, fmt.Errorf("reserve places: %w", err)
	}
	if after != nil {
		return &places{*after, *n, *day}, nil
	}
	if end < s.head || generation != s.generation || now != s.layout {
		return nil, errWentBack
	}
	return nil, nil // no row waits, or one of these has just changed, which the next round sees
}

// fill moves the rows for which this sequencer has reserved places. It returns how long the first
// one has waited. The number of sequencers cannot change meanwhile: changeNumber waits until no
// places are reserved.
func (s *Sequencer) fill(ctx context.Context, p places) (waited time.Duration, err error) {
	err = pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		var filled int
		err := tx.QueryRow(ctx, `
			WITH due AS (
				DELETE FROM reserved_places WHERE after_seq = $1 AND sequencer = $2 RETURNING ids
			), moved AS (
				DELETE FROM outbox WHERE id = ANY(ARRAY(SELECT unnest(ids) FROM due)) RETURNING *
			), placed AS (
				INSERT INTO events (stream_seq, day, kind, convo_id, seq, did, size, detail, created_at, convo_ids, seqs, sizes)
				SELECT $1 + sum(coalesce(cardinality(m.seqs), 1)) OVER (ORDER BY m.id), $3,
					m.kind, m.convo_id, m.seq, m.did, m.size, m.detail, m.created_at, m.convo_ids, m.seqs, m.sizes
				FROM moved m
				RETURNING stream_seq, created_at
			)
			SELECT coalesce(max(stream_seq) - $1, 0), coalesce(clock_timestamp() - min(created_at), '0'), pg_notify($4, max(stream_seq)::text)::text FROM placed`,
			p.after, s.number, p.day, eventsChannel).Scan(&filled, &waited, nil)
		if err != nil {
			return err
		}
		if filled != p.n {
			return fmt.Errorf("%w: %d events for %d places", errNotFilled, filled, p.n)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("fill places: %w", err)
	}
	return waited, nil
}

// findReserved reads the places that the leader before has reserved and has not filled.
func (s *Sequencer) findReserved(ctx context.Context) error {
	var p places
	err := s.conn.QueryRow(ctx, `SELECT after_seq, n, day FROM reserved_places WHERE sequencer = $1`, s.number).Scan(&p.after, &p.n, &p.day)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		s.reserved = nil
	case err != nil:
		return fmt.Errorf("look for reserved places: %w", err)
	default:
		s.reserved = &p
	}
	return nil
}
