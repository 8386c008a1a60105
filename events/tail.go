package events

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
)

// tail is the end of the stream, as a hub has read it.
type tail struct {
	of      generations // generations up to the one that is read
	head    int64       // place of the newest event
	day     time.Time   // partition of the newest event
	indexed int64       // convo_events has the messages up to this place
	memory  memory      // events up to head; at least those that are not indexed
}

// read reads the next events. continues says that these events follow the hub's head: the stream
// has no newer generation, and has not gone back.
func (h *Hub) read(ctx context.Context) (batch []*Event, continues bool, err error) {
	batch, now, err := h.tail.next(ctx, h.cfg.DB)
	if err != nil {
		return nil, false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.indexed = now.indexed
	return batch, now.generation == h.of.newest().id && now.head >= h.head, nil
}

// ends is the state of the stream after a read.
type ends struct{ generation, head, indexed int64 }

// next reads the events of the next rows, at most tailLimit rows.
func (t *tail) next(ctx context.Context, db *pgxpool.Pool) (batch []*Event, now ends, err error) {
	both := &pgx.Batch{}
	both.Queue(`
		SELECT stream_seq, day, kind, convo_id, seq, did, size, detail, created_at, convo_ids, seqs, sizes FROM events
		WHERE stream_seq > $1 AND day >= $2
		ORDER BY stream_seq LIMIT $3`, t.head, t.day, tailLimit).Query(func(rows pgx.Rows) error {
		shared, err := pgx.CollectRows(rows, t.of.scanShared)
		batch = since(slices.Concat(shared...), t.head)
		return err
	})
	// This query runs after the query of the events, because the generation of an event is recorded
	// before the event. The newest event is where the stream ends. The row of the table stream also
	// says so, but that row has a version for each step, and PostgreSQL keeps all versions while a
	// snapshot is open.
	both.Queue(`
		SELECT (SELECT max(id) FROM generations), coalesce((SELECT max(stream_seq) FROM events), 0), (SELECT last FROM
			convo_events_end)`).
		QueryRow(func(row pgx.Row) error { return row.Scan(&now.generation, &now.head, &now.indexed) })
	err = db.SendBatch(ctx, both).Close()
	return batch, now, errs.Wrap(err, "read the end of the stream")
}

// remember reads the events of a stream that are not indexed, up to the end of the stream.
func (h *Hub) remember(ctx context.Context, s stream) (tail, error) {
	t := tail{of: s.of, head: s.head, day: s.day, indexed: s.indexed}
	if from := max(s.indexed, s.head-maxEvents, s.first-1); from < s.head {
		t.head, t.day = from, time.Time{}
	}
	for t.head < s.head {
		batch, now, err := t.next(ctx, h.cfg.DB)
		switch {
		case err != nil:
			return tail{}, err
		case len(batch) == 0, now.generation != s.of.newest().id:
			return tail{}, errNotThere
		}
		for _, e := range batch {
			t.memory.add(e)
			t.head, t.day = e.StreamSeq, e.day
		}
	}
	return t, nil
}

// start begins to read at the end of the stream.
func (h *Hub) start(ctx context.Context) error {
	var s stream
	err := h.cfg.DB.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
		if s, err = readStream(ctx, conn); err != nil {
			return err
		}
		if _, err = checkServer(ctx, conn.Conn(), s.of, h.cfg.OnDump); err != nil { // before the first cursor is read
			return err
		}
		s, err = readStream(ctx, conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("find the end of the stream: %w", err)
	}
	at, err := h.remember(ctx, s)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tail = at
	close(h.started)
	return nil
}

// checkServer begins a generation if the database did not write the newest one. Every node does
// this, so a new database is noticed even while no node leads.
func (h *Hub) checkServer(ctx context.Context) error {
	if time.Since(h.checked) < checkEvery {
		return nil
	}
	conn, err := h.cfg.DB.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Release()
	all, err := checkServer(ctx, conn.Conn(), h.of, h.cfg.OnDump)
	if err != nil {
		return err
	}
	h.checked = time.Now()
	if all.newest().id == h.of.newest().id { // otherwise read notices the new generation
		h.mu.Lock()
		defer h.mu.Unlock()
		h.of = all
	}
	return nil
}

// startAgain begins to read the newest generation. If there is no new one, the stream has gone
// back, because an older state of the database has replaced the newest state. Then startAgain
// begins a generation.
func (h *Hub) startAgain(ctx context.Context) error {
	s, err := readStream(ctx, h.cfg.DB)
	if err != nil {
		return err
	}
	if newest := s.of.newest(); newest.id == h.of.newest().id {
		if err := beginGeneration(ctx, h.cfg.DB, newest.id, newest.by, causeWentBack, nil); err != nil {
			return err
		}
		if s, err = readStream(ctx, h.cfg.DB); err != nil {
			return err
		}
	}
	return h.jump(ctx, s)
}

// jump continues at another place of the stream. The present subscriptions have missed events, or
// have got events that no longer exist, so jump ends them. Their clients connect again, and learn
// then whether their cursors are still good.
func (h *Hub) jump(ctx context.Context, to stream) error {
	at, err := h.remember(ctx, to)
	if err != nil {
		return err
	}
	h.cfg.Log.Error("the stream does not go on where this node has read it",
		"generation", h.of.newest().id, "after", h.head, "new_generation", to.of.newest().id, "from", at.head+1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.all {
		s.mu.Lock()
		s.fail(ErrClosing)
		s.mu.Unlock()
	}
	h.tail = at
	clear(h.shared)
	return nil
}
