package convos

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/batch"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/messages"
)

// Bounds of the transactions that move cursors.
const (
	cursorsPerBatch = 256
	cursorsWaiting  = 4096
	cursorTimeout   = 4 * time.Second
	cursorsAlone    = 8 // transactions at one time that wait for the lock of a cursor
	cursorAttempts  = 3 // attempts of one such transaction
)

// Cursors moves readers' cursors. Moves that arrive at the same time share a statement, which does
// not wait for locks. If another transaction has locked a move's cursor, or if the statement fails,
// the move is made again alone, after waiting for the lock. A move is safe to repeat, because a
// cursor only goes up. Cursors is safe for concurrent use.
type Cursors struct {
	db     *pgxpool.Pool
	faults *failpoint.Set
	moves  *batch.Batcher[move, moved]
	shown  func(convo uuid.UUID, reader syntax.DID, at Cursor)
	alone  chan struct{} // a semaphore of size cursorsAlone
}

// Cursor says how far a member and its devices are in a convo's log.
type Cursor struct {
	Read      int64 // the last entry that the member has read
	Delivered int64 // the last entry that a device of the member has received; in an answer, at least Read
}

// move asks to move a cursor to seq and delivered, unless it is further already.
type move struct {
	convo     uuid.UUID
	reader    syntax.DID
	seq       int64
	delivered int64
}

// moved is the outcome of a move.
type moved struct {
	status   string
	lastSeq  int64
	cursor   Cursor // set if status is cursorMoved
	hasMoved bool   // the move has changed the cursor
	shared   bool   // other members may see the cursor
}

// Outcomes of a move, as the statement moveCursors names them.
const (
	cursorNotFound  = "convo-not-found"
	cursorNotMember = "not-member"
	cursorAhead     = "ahead"
	cursorBusy      = "busy" // another transaction has locked the row
	cursorMoved     = "moved"
)

// NewCursors returns cursors in db, which the caller owns. faults can be nil. Cursors calls shown
// with each cursor that has moved and that other members may see. shown must not block.
func NewCursors(db *pgxpool.Pool, faults *failpoint.Set,
	shown func(convo uuid.UUID, reader syntax.DID, at Cursor)) *Cursors {
	c := &Cursors{db: db, faults: faults, alone: make(chan struct{}, cursorsAlone), shown: shown}
	c.moves = batch.New(batch.Limits{Batch: cursorsPerBatch, Queue: cursorsWaiting, Timeout: cursorTimeout},
		c.moveTogether)
	return c
}

// Update moves the reader's cursor, never back, and returns its new position. Errors: ErrNotFound,
// ErrNotMember, ErrSeqAhead, messages.ErrBusy, batch.ErrOverloaded, batch.ErrClosed, those of ctx
// and of the database.
func (c *Cursors) Update(ctx context.Context, convo uuid.UUID, reader syntax.DID, to Cursor) (Cursor, error) {
	m := move{convo, reader, to.Read, to.Delivered}
	r, err := c.moves.Do(ctx, m)
	switch {
	case errors.Is(err, batch.ErrOverloaded), errors.Is(err, batch.ErrClosed), err != nil && ctx.Err() != nil:
		return Cursor{}, fmt.Errorf("move the cursor: %w", err)
	case err != nil, r.status == cursorBusy:
		if r, err = c.moveAlone(ctx, m); err != nil {
			return Cursor{}, fmt.Errorf("move the cursor: %w", err)
		}
	}
	switch r.status {
	case cursorMoved:
		return r.cursor, nil
	case cursorNotMember:
		return Cursor{}, ErrNotMember
	case cursorAhead:
		return Cursor{}, fmt.Errorf("%w; lastSeq=%d", ErrSeqAhead, r.lastSeq)
	case cursorBusy: // the reader joined between the two statements of moveAlone
		return Cursor{}, fmt.Errorf("move the cursor: %w", messages.ErrBusy)
	}
	return Cursor{}, ErrNotFound
}

// Close finishes the waiting moves and refuses later ones. It returns when all moves are finished,
// or with ctx's error.
func (c *Cursors) Close(ctx context.Context) error { return c.moves.Close(ctx) }

// moveCursors moves cursors, and returns the outcome of each move.
//
//go:embed movecursors.sql
var moveCursors string

// moveTogether makes moves in one transaction, and does not wait for locks.
func (c *Cursors) moveTogether(ctx context.Context, moves []move) ([]moved, error) {
	return c.move(ctx, &pgx.Batch{}, moves)
}

// moveAlone makes one move. It waits for the cursor's lock, but no longer than the session's
// lock_timeout.
func (c *Cursors) moveAlone(ctx context.Context, m move) (moved, error) {
	select {
	case c.alone <- struct{}{}:
		defer func() { <-c.alone }()
	case <-ctx.Done():
		return moved{}, ctx.Err()
	}
	for n := 1; ; n++ {
		statements := &pgx.Batch{}
		statements.Queue(`
			SELECT FROM members WHERE convo_id = $1 AND did = $2 AND (cursor_seq < $3 OR greatest(cursor_seq, delivered_seq) <
				$4) FOR NO KEY UPDATE`,
			m.convo, m.reader, m.seq, m.delivered)
		results, err := c.move(ctx, statements, []move{m})
		if err == nil {
			return results[0], nil
		}
		if n == cursorAttempts || ctx.Err() != nil || !pgpool.ConnectionLost(err) {
			return moved{}, err
		}
	}
}

// move runs statements and then makes moves, in one transaction.
func (c *Cursors) move(ctx context.Context, statements *pgx.Batch, moves []move) (results []moved, err error) {
	convos := make(pgpool.Array[pgpool.UUID], len(moves))
	readers := make(pgpool.Array[pgpool.Text], len(moves))
	seqs := make(pgpool.Array[pgpool.Int], len(moves))
	delivered := make(pgpool.Array[pgpool.Int], len(moves))
	for i := range moves {
		convos[i], readers[i] = pgpool.UUID(moves[i].convo), pgpool.Text(moves[i].reader)
		seqs[i], delivered[i] = pgpool.Int(moves[i].seq), pgpool.Int(moves[i].delivered)
	}
	statements.Queue(moveCursors, convos, readers, seqs, delivered).Query(func(rows pgx.Rows) error {
		var r moved
		_, err := pgx.ForEachRow(rows,
			[]any{&r.status, &r.lastSeq, &r.cursor.Read, &r.cursor.Delivered, &r.hasMoved, &r.shared}, func() error {
				results = append(results, r)
				return nil
			})
		return err
	})
	err = pgpool.SendTx(ctx, c.db, statements, c.faults.Hook(ctx, failpoint.BeforeCommit, nsid.UpdateCursor))
	if err != nil {
		return results, err
	}
	for i, r := range results {
		if r.hasMoved && r.shared {
			c.shown(moves[i].convo, moves[i].reader, r.cursor)
		}
	}
	return results, c.faults.Hit(ctx, failpoint.AfterCommit, nsid.UpdateCursor)
}
