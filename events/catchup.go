package events

import (
	"cmp"
	"context"
	_ "embed" // of find_events.sql
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

// catchUp reads the table events for one subscription, from the subscription's place to a place that
// the stream has already.
type catchUp struct {
	hub         *Hub
	buffer      *buffer     // of the subscription
	of          generations // generations of the stream when the subscription began
	place       int64       // the last place that has been read
	upto        int64
	window      int64                  // places of the stream that are searched for the next page
	days        []day                  // the oldest one first
	memberships []membership           // memberships of the DID between place and upto
	convos      map[uuid.UUID]struct{} // the convos of the DID at place; after replay, at upto
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

// begin finds out which convos the DID is entitled to between place and upto, and which of them it
// has not accepted. One statement reads roster, stream and outbox in one snapshot. To get the
// memberships at place, begin takes the present roster and rewinds the changes since place.
func (c *catchUp) begin(ctx context.Context) (requests []uuid.UUID, err error) {
	c.window, c.convos = firstWindow, map[uuid.UUID]struct{}{}
	rows := pgpool.Rows(ctx, c.hub.cfg.DB, `SELECT day, first_seq FROM event_days ORDER BY day`)
	c.days, err = pgx.CollectRows(rows,
		func(row pgx.CollectableRow) (d day, err error) { return d, row.Scan(&d.at, &d.first) })
	if err != nil {
		return nil, fmt.Errorf("read the days: %w", err)
	}
	rows = pgpool.Rows(ctx, c.hub.cfg.DB, `
		SELECT convo_id, 0::bigint, true, requested_at IS NOT NULL FROM members WHERE did = $1 AND left_at IS NULL
		UNION ALL
		SELECT convo_id, stream_seq, detail->>'change' = 'joined', false FROM events WHERE did = $1 AND stream_seq > $2 AND
			day >= $3 AND kind = 4
		UNION ALL
		SELECT convo_id, $4::bigint, detail->>'change' = 'joined', false FROM (SELECT * FROM outbox WHERE did = $1 AND kind =
			4 ORDER BY id) waiting`,
		c.buffer.did, c.place, c.dayOf(c.place+1), int64(notYet))
	var changes []change
	var one change
	_, err = pgx.ForEachRow(rows, []any{&one.convo, &one.at, &one.joined, &one.request}, func() error {
		switch {
		case !c.buffer.wants(one.convo):
		case one.at == 0: // a row of the roster
			c.convos[one.convo] = struct{}{}
			if one.request {
				requests = append(requests, one.convo)
			}
		default:
			changes = append(changes, one)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the subscriber's convos: %w", err)
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	c.rewind(changes)
	c.replay(changes)
	return requests, nil
}

// rewind changes convos from the present convos of the roster to the convos at place.
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
		since[convo] = c.place
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
	if c.place >= c.upto {
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
	c.hub.mu.Lock()
	for i, e := range page {
		page[i] = c.hub.share(e)
		if e.Kind.LogEntry() && e.Size <= largeEvent { // Next loads the large entries
			entries = append(entries, e)
		}
	}
	c.hub.mu.Unlock()
	load := func(ctx context.Context, db *pgxpool.Pool) error { return loadEntries(ctx, db, entries) }
	if err := c.hub.cfg.Reads.Read(ctx, load); err != nil {
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
		return !e.ofConvo() && !c.buffer.wants(e.ConvoID)
	})
	if gone > 0 {
		c.hub.cfg.Log.InfoContext(ctx, "log entries of events are gone", "entries", gone, "upto", c.place)
	}
	return page, c.place >= c.upto, nil
}

// move moves place to the end of a page. full says that the window may hold more events than the
// page. Then the next window is twice the part that filled the page. If full is false, the next
// window is larger, because an empty part costs only the look-ups.
func (c *catchUp) move(page []*Event, end int64, full bool) {
	if !full {
		c.place, c.window = end, min(4*c.window, maxWindow)
		return
	}
	last := page[len(page)-1].StreamSeq
	c.place, c.window = last, 2*(last-c.place)
}

// find finds the next events, up to the place end. It finds indexed events in the table, and events
// that are not indexed yet in the hub. full says that there may be more events up to end.
func (c *catchUp) find(ctx context.Context) (found []*Event, end int64, full bool, err error) {
	h := c.hub
	h.mu.Lock()
	indexed, remembered := h.indexed, h.remembers(c.place)
	end = min(c.upto, c.place+c.window)
	if c.place >= indexed && remembered {
		found = h.memory.find(c.buffer.did, c.memberships, c.place, end, pageEvents)
	}
	h.mu.Unlock()
	c.waits = c.place >= indexed && !remembered
	switch {
	case c.waits: // the index is far behind
		return nil, c.place, false, nil
	case c.place < indexed:
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
		if m.to > c.place && m.from < end {
			convos, from, to = append(convos, m.convo), append(from, max(m.from, c.place)), append(to, min(m.to, end))
		}
	}
	// Each page searches all convos, so a person with many convos needs larger pages.
	limit := max(pageEvents, len(convos))
	var first, newest int64
	err = c.hub.cfg.Reads.Read(ctx, func(ctx context.Context, db *pgxpool.Pool) error {
		both := &pgx.Batch{}
		both.Queue(findEvents, pgx.NamedArgs{
			"convos": convos, "froms": from, "uptos": to, "first_day": c.dayOf(c.place + 1), "last_day": c.dayOf(end),
			"limit": limit, "did": c.buffer.did, "before": c.place, "last": end, "span": indexSpan,
		}).Query(func(rows pgx.Rows) error {
			found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Event, error) { return c.of.scan(row) })
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
	if first > c.place+1 || newest != c.of.newest().id {
		return nil, 0, false, errNotThere
	}
	return found, end, len(found) == limit, nil
}
