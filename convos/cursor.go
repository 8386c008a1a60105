package convos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/failpoint"
	"mlsd/internal/gather"
	"mlsd/internal/pgpool"
)

// Bounds of the statements that move cursors.
const (
	cursorsOfCall  = 256
	cursorsWaiting = 4096
	cursorTimeout  = 4 * time.Second
	cursorsAlone   = 8 // statements at once, each with one cursor, that may wait for a row
	cursorAttempts = 3 // of one that is alone
)

// NSIDUpdateCursor is the method whose faults the cursors have.
const NSIDUpdateCursor = "blue.catbird.mls.updateCursor"

// Cursors moves readers' cursors. Those that come at the same time share a statement, which waits for nobody: whose row another
// transaction holds, or whose statement has failed, goes on alone. All of it may be done again, because a cursor only goes up. It is
// safe for concurrent use.
type Cursors struct {
	db     *pgxpool.Pool
	faults *failpoint.Set
	moves  *gather.Calls[move, moved]
	alone  chan struct{} // held by a move that is alone
}

// move is a cursor that is to stand at seq, or further.
type move struct {
	convo  uuid.UUID
	reader syntax.DID
	seq    int64
}

// moved is what became of a move.
type moved struct {
	status  string
	lastSeq int64
	cursor  int64 // of cursorMoved
}

// Outcomes that the statement gives a move.
const (
	cursorNotFound  = "convo-not-found"
	cursorNotMember = "not-member"
	cursorAhead     = "ahead"
	cursorBusy      = "busy" // another transaction holds the row
	cursorMoved     = "moved"
)

// NewCursors returns cursors in db, which the caller owns. faults may be nil.
func NewCursors(db *pgxpool.Pool, faults *failpoint.Set) *Cursors {
	c := &Cursors{db: db, faults: faults, alone: make(chan struct{}, cursorsAlone)}
	c.moves = gather.New(gather.Limits{Batch: cursorsOfCall, Queue: cursorsWaiting, Timeout: cursorTimeout},
		func(ctx context.Context, moves []move) ([]moved, error) { return c.move(ctx, moves, moveIdle) })
	return c
}

// Update moves the reader's cursor to seq, never back, and returns where it stands. Errors: ErrNotFound, ErrNotMember, ErrSeqAhead,
// those of package gather for what was not tried, and the database's.
func (c *Cursors) Update(ctx context.Context, convo uuid.UUID, reader syntax.DID, seq int64) (int64, error) {
	m := move{convo, reader, seq}
	r, err := c.moves.Do(ctx, m)
	switch {
	case errors.Is(err, gather.ErrOverloaded), errors.Is(err, gather.ErrClosed), err != nil && ctx.Err() != nil:
		return 0, fmt.Errorf("move the cursor: %w", err)
	case err != nil, r.status == cursorBusy:
		if r, err = c.moveAlone(ctx, m); err != nil {
			return 0, fmt.Errorf("move the cursor: %w", err)
		}
	}
	switch r.status {
	case cursorMoved:
		return r.cursor, nil
	case cursorNotMember:
		return 0, ErrNotMember
	case cursorAhead:
		return 0, fmt.Errorf("%w; lastSeq=%d", ErrSeqAhead, r.lastSeq)
	}
	return 0, ErrNotFound
}

// Close has what is waiting done and refuses what comes later. It returns once all is done, or ctx's error.
func (c *Cursors) Close(ctx context.Context) error { return c.moves.Close(ctx) }

// moveAlone waits for the row, as long as the session's lock_timeout lets it. What the database could not do at the moment, or may have
// done, is done again.
func (c *Cursors) moveAlone(ctx context.Context, m move) (moved, error) {
	select {
	case c.alone <- struct{}{}:
		defer func() { <-c.alone }()
	case <-ctx.Done():
		return moved{}, ctx.Err()
	}
	for try := 1; ; try++ {
		results, err := c.move(ctx, []move{m}, moveWaiting)
		if err == nil {
			return results[0], nil
		}
		if try == cursorAttempts || ctx.Err() != nil || !passing(err) {
			return moved{}, err
		}
	}
}

// passing reports whether what the database could not do it may do at once. Who has waited for a lock has waited long enough.
func passing(err error) bool {
	return pgpool.Unavailable(err) && !pgpool.LockTimeout(err) || errors.Is(err, failpoint.ErrInjected)
}

// moveWaiting judges each move by itself and moves each cursor once, to the furthest that is asked of it: who asked for less gets the
// answer of one that came later. A row that is there already is not touched, so that a repetition costs no flush. The locks are taken
// in one order. What is known of a move stays in its row: with hash joins off, a join of two of these parts would be a loop in a loop.
const moveWaiting = `
	WITH judged AS (
		SELECT a.*, m.cursor_seq, c.last_seq, CASE
				WHEN c.id IS NULL OR m.did IS NULL THEN 'convo-not-found'
				WHEN m.left_at IS NOT NULL THEN 'not-member'
				WHEN a.seq > c.last_seq THEN 'ahead'
				ELSE 'moved'
			END AS status
		FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS a (convo_id, did, seq, ord)
		LEFT JOIN LATERAL (SELECT * FROM members WHERE convo_id = a.convo_id AND did = a.did LIMIT 1) m ON true
		LEFT JOIN LATERAL (SELECT * FROM convos WHERE id = a.convo_id LIMIT 1) c ON true
	), merged AS (
		SELECT *, max(seq) FILTER (WHERE status = 'moved') OVER (PARTITION BY convo_id, did) AS furthest,
			row_number() OVER (PARTITION BY convo_id, did ORDER BY ord) = 1 AS first
		FROM judged
	), held AS MATERIALIZED (
		SELECT a.*, m.cursor_seq AS held_seq
		FROM (SELECT * FROM merged ORDER BY convo_id, did COLLATE "C", ord) a
		LEFT JOIN LATERAL (
			SELECT cursor_seq FROM members
			WHERE convo_id = a.convo_id AND did = a.did AND a.first AND a.furthest > a.cursor_seq
			FOR NO KEY UPDATE
		) m ON true
	), moved AS (
		UPDATE members m SET cursor_seq = h.furthest
		FROM held h
		WHERE m.convo_id = h.convo_id AND m.did = h.did AND h.held_seq IS NOT NULL AND m.cursor_seq < h.furthest
	)
	SELECT CASE WHEN status = 'moved' AND cursor IS NULL THEN 'busy' ELSE status END, coalesce(last_seq, 0), coalesce(cursor, 0)
	FROM (
		SELECT *, CASE
				WHEN max(held_seq) OVER (PARTITION BY convo_id, did) IS NOT NULL
					THEN greatest(furthest, max(held_seq) OVER (PARTITION BY convo_id, did))
				WHEN seq <= cursor_seq THEN cursor_seq
			END AS cursor
		FROM held
	) answered
	ORDER BY ord`

// moveIdle passes over rows that another transaction holds.
var moveIdle = strings.Replace(moveWaiting, "FOR NO KEY UPDATE\n", "FOR NO KEY UPDATE SKIP LOCKED\n", 1)

// move does moves in one statement, which is a transaction, and answers for each.
func (c *Cursors) move(ctx context.Context, moves []move, statement string) (results []moved, err error) {
	if c.faults.Armed(failpoint.BeforeCommit, NSIDUpdateCursor) {
		err = pgx.BeginFunc(ctx, c.db, func(tx pgx.Tx) error {
			if results, err = moveIn(ctx, tx, moves, statement); err != nil {
				return err
			}
			return c.faults.Hit(ctx, failpoint.BeforeCommit, NSIDUpdateCursor)
		})
	} else {
		results, err = moveIn(ctx, c.db, moves, statement)
	}
	if err == nil {
		err = c.faults.Hit(ctx, failpoint.AfterCommit, NSIDUpdateCursor)
	}
	return results, err
}

func moveIn(ctx context.Context, q pgpool.Queryer, moves []move, statement string) ([]moved, error) {
	convos := make(pgpool.Array[pgpool.UUID], len(moves))
	readers := make(pgpool.Array[pgpool.Text], len(moves))
	seqs := make(pgpool.Array[pgpool.Int], len(moves))
	for i := range moves {
		convos[i], readers[i], seqs[i] = pgpool.UUID(moves[i].convo), pgpool.Text(moves[i].reader), pgpool.Int(moves[i].seq)
	}
	rows, err := q.Query(ctx, statement, convos, readers, seqs)
	if err != nil {
		return nil, err
	}
	results := make([]moved, 0, len(moves))
	var r moved
	_, err = pgx.ForEachRow(rows, []any{&r.status, &r.lastSeq, &r.cursor}, func() error {
		results = append(results, r)
		return nil
	})
	return results, err
}
