package events

import (
	"cmp"
	"context"
	_ "embed" // of find_events.sql
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgpool"
)

const (
	pageEvents  = 200
	pageBytes   = 256 << 10 // bytes of log entries in one page; the first entry of a page can be larger
	firstWindow = 1 << 14   // places of the stream that are searched for the first page
	maxWindow   = 1 << 40   // more than a stream has

	indexPause = 100 * time.Millisecond // how long a reader waits for the index before it tries again
)

//go:embed find_events.sql
var findEvents string

// errNotThere says that partitions were dropped before the reader had read them, or that the stream
// has gone back.
var errNotThere = errors.New("the events that come next are not there any more")

// catchUp reads the table events for one subscription, from the subscription's position to a place
// that the stream has already.
type catchUp struct {
	s           *Subscription
	position    int64 // the last place that has been read
	upto        int64
	window      int64                  // places of the stream that are searched for the next page
	days        []day                  // the oldest one first
	memberships []membership           // memberships of the DID between position and upto
	convos      map[uuid.UUID]struct{} // the convos of the DID at position; after replay, at upto
	waits       bool                   // the last page must wait for the index
}

// day is a row of the table event_days: a partition and the partition's first event.
type day struct {
	at    time.Time
	first int64
}

// dayOf returns the partition of a place of the stream.
func (c *catchUp) dayOf(seq int64) time.Time {
	for _, d := range slices.Backward(c.days) {
		if d.first <= seq {
			return d.at
		}
	}
	return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // older than all partitions
}

// membership is a part of the stream in which the DID is entitled to a convo's events:
// from < stream_seq ≤ to.
type membership struct {
	convo    uuid.UUID
	from, to int64
}

// change is a membership event of the DID itself.
type change struct {
	convo  uuid.UUID
	at     int64 // place of the event in the stream, or notYet
	joined bool

	request bool // the person has not accepted the convo; set only for rows of the roster
}

// notYet is the place of an event that is still in the outbox. It is behind all events of the
// stream.
const notYet = 1<<63 - 1

// begin finds out which convos the DID is entitled to between two places of the stream. One
// statement reads roster, stream and outbox in one snapshot. To get the memberships at position,
// begin takes the present roster and rewinds the changes since position.
func (s *Subscription) begin(ctx context.Context, position, upto int64) (*catchUp, error) {
	c := &catchUp{s: s, position: position, upto: upto, window: firstWindow, convos: map[uuid.UUID]struct{}{}}
	rows := pgpool.Rows(ctx, s.hub.cfg.DB, `SELECT day, first_seq FROM event_days ORDER BY day`)
	var err error
	c.days, err = pgx.CollectRows(rows,
		func(row pgx.CollectableRow) (d day, err error) { return d, row.Scan(&d.at, &d.first) })
	if err != nil {
		return nil, fmt.Errorf("read the days: %w", err)
	}
	rows = pgpool.Rows(ctx, s.hub.cfg.DB, `
		SELECT convo_id, 0::bigint, true, requested_at IS NOT NULL FROM members WHERE did = $1 AND left_at IS NULL
		UNION ALL
		SELECT convo_id, stream_seq, detail->>'change' = 'joined', false FROM events WHERE did = $1 AND stream_seq > $2 AND
			day >= $3 AND kind = 4
		UNION ALL
		SELECT convo_id, $4::bigint, detail->>'change' = 'joined', false FROM (SELECT * FROM outbox WHERE did = $1 AND kind =
			4 ORDER BY id) waiting`,
		s.did, position, c.dayOf(position+1), int64(notYet))
	var changes []change
	var one change
	var pending []uuid.UUID // convos that the person has not accepted
	_, err = pgx.ForEachRow(rows, []any{&one.convo, &one.at, &one.joined, &one.request}, func() error {
		switch {
		case !s.wants(one.convo):
		case one.at == 0: // a row of the roster
			c.convos[one.convo] = struct{}{}
			if one.request {
				pending = append(pending, one.convo)
			}
		default:
			changes = append(changes, one)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the subscriber's convos: %w", err)
	}
	s.requests.set(pending, upto)
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	c.rewind(changes)
	c.replay(changes)
	return c, nil
}

// rewind changes convos from the present convos of the roster to the convos at position.
func (c *catchUp) rewind(changes []change) {
	for _, ch := range slices.Backward(changes) {
		if ch.joined {
			delete(c.convos, ch.convo)
		} else {
			c.convos[ch.convo] = struct{}{}
		}
	}
}

// replay changes convos to the convos at upto, and collects the memberships between. A membership
// includes the event that ends it.
func (c *catchUp) replay(changes []change) {
	since := map[uuid.UUID]int64{}
	for convo := range c.convos {
		since[convo] = c.position
	}
	for _, ch := range changes {
		if ch.at > c.upto {
			break
		}
		from, in := since[ch.convo]
		switch {
		case ch.joined && !in:
			since[ch.convo] = ch.at - 1
		case !ch.joined && in:
			c.memberships = append(c.memberships, membership{ch.convo, from, ch.at})
			delete(since, ch.convo)
		}
	}
	clear(c.convos)
	for convo, from := range since {
		c.memberships = append(c.memberships, membership{convo, from, c.upto})
		c.convos[convo] = struct{}{}
	}
}

// page reads the next events. done says that there are no more events up to upto.
func (c *catchUp) page(ctx context.Context) (page []*Event, done bool, err error) {
	if c.position >= c.upto {
		return nil, true, nil
	}
	found, end, full, err := c.find(ctx)
	if err != nil {
		return nil, false, err
	}
	page, total := found, 0
	for i, e := range found {
		if total += e.Size; total > pageBytes && i > 0 {
			page = found[:i]
			break
		}
	}
	var entries []*Event
	c.s.hub.mu.Lock()
	for i, e := range page {
		page[i] = c.s.hub.share(e)
		if e.Kind.LogEntry() && e.Size <= largeEvent { // Next loads the large entries
			entries = append(entries, e)
		}
	}
	c.s.hub.mu.Unlock()
	load := func(ctx context.Context, db *pgxpool.Pool) error { return loadEntries(ctx, db, entries) }
	if err := c.s.hub.cfg.Reads.Read(ctx, load); err != nil {
		return nil, false, fmt.Errorf("catch up: %w", err)
	}
	c.move(page, end, len(page) < len(found) || full)
	// Entries that have expired, or whose convo was deleted, are missing. page leaves out their
	// events.
	var gone int
	page = slices.DeleteFunc(page, func(e *Event) bool {
		if e.Kind.LogEntry() && e.Size <= largeEvent && e.Message() == nil {
			gone++
			return true
		}
		// find selects events for one person by the DID alone, so unwanted convos are removed here.
		return !e.ofConvo() && !c.s.wants(e.ConvoID)
	})
	if gone > 0 {
		c.s.hub.cfg.Log.InfoContext(ctx, "log entries of events are gone", "entries", gone, "upto", c.position)
	}
	return page, c.position >= c.upto, nil
}

// move moves position to the end of a page. full says that the window may hold more events than the
// page. Then the next window is twice the part that filled the page. If full is false, the next
// window is larger, because an empty part costs only the look-ups.
func (c *catchUp) move(page []*Event, end int64, full bool) {
	if !full {
		c.position, c.window = end, min(4*c.window, maxWindow)
		return
	}
	last := page[len(page)-1].StreamSeq
	c.position, c.window = last, 2*(last-c.position)
}

// find finds the next events, up to the place end. It finds indexed events in the table, and events
// that are not indexed yet in the hub. full says that there may be more events up to end.
func (c *catchUp) find(ctx context.Context) (found []*Event, end int64, full bool, err error) {
	h := c.s.hub
	h.mu.Lock()
	indexed, remembered := h.indexed, h.remembers(c.position)
	end = min(c.upto, c.position+c.window)
	if c.position >= indexed && remembered {
		found = h.memory.find(c.s.did, c.memberships, c.position, end, pageEvents)
	}
	h.mu.Unlock()
	c.waits = c.position >= indexed && !remembered
	switch {
	case c.waits: // the index is far behind
		return nil, c.position, false, nil
	case c.position < indexed:
		return c.findInTable(ctx, min(end, indexed))
	}
	for i, e := range found {
		found[i] = e.withoutEntry()
	}
	return found, end, len(found) == pageEvents, nil
}

// findInTable finds the first events of the window that ends with end.
//
// The query searches the index for each convo in the window, so a page costs a look-up for each
// convo besides its events. Without a window, each convo would give a whole page of events, and the
// next page would read most of them again.
func (c *catchUp) findInTable(ctx context.Context, end int64) (found []*Event, _ int64, full bool, err error) {
	var convos []uuid.UUID
	var from, to []int64
	for _, m := range c.memberships {
		if m.to > c.position && m.from < end {
			convos, from, to = append(convos, m.convo), append(from, max(m.from, c.position)), append(to, min(m.to, end))
		}
	}
	// Each page searches all convos, so a person with many convos needs larger pages.
	limit := max(pageEvents, len(convos))
	var first, newest int64
	err = c.s.hub.cfg.Reads.Read(ctx, func(ctx context.Context, db *pgxpool.Pool) error {
		both := &pgx.Batch{}
		both.Queue(findEvents,
			convos, from, to, c.dayOf(c.position+1), c.dayOf(end), limit, c.s.did, c.position, end,
			indexSpan).Query(func(rows pgx.Rows) error {
			found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Event, error) { return c.s.of.scan(row) })
			return err
		})
		// This is read after the page, to notice partitions that were dropped meanwhile and a new
		// generation, which is recorded before its first event.
		both.Queue(`SELECT (SELECT coalesce(min(first_seq), 0) FROM event_days), (SELECT max(id) FROM generations)`).
			QueryRow(func(row pgx.Row) error { return row.Scan(&first, &newest) })
		return db.SendBatch(ctx, both).Close()
	})
	if err != nil {
		return nil, 0, false, fmt.Errorf("catch up: %w", err)
	}
	if first > c.position+1 || newest != c.s.of.newest().id {
		return nil, 0, false, errNotThere
	}
	return found, end, len(found) == limit, nil
}
