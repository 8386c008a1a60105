package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	pageEvents = 200
	pageBytes  = 256 << 10 // of log entries in one page; the first entry of a page can be larger
)

// errNotThere says that days were dropped before the reader had read them, or that the stream has
// gone back.
var errNotThere = errors.New("the events that come next are not there any more")

// catchUp reads the table events for one subscription, from its position to a place of the stream
// that exists already.
type catchUp struct {
	s           *Subscription
	position    int64 // the last place that has been read
	upto        int64
	day         time.Time              // no event behind position is older
	memberships []membership           // of the DID, between position and upto
	convos      map[uuid.UUID]struct{} // the convos of the DID at position; after replay, at upto
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
	at     int64 // its place in the stream, or notYet
	joined bool

	request bool // the person has not accepted the convo: only of the roster
}

// notYet is the place of an event that is still in the outbox. It is behind all events of the
// stream.
const notYet = 1<<63 - 1

// begin finds out which convos the DID is entitled to between two places of the stream.
//
// One statement reads the roster, the stream and the outbox in one snapshot. The roster says where
// the DID is a member now. To rewind the changes since position gives its memberships at position:
// before it joined it was no member, and before it left it was one.
func (s *Subscription) begin(ctx context.Context, position, upto int64) (*catchUp, error) {
	c := &catchUp{s: s, position: position, upto: upto, convos: map[uuid.UUID]struct{}{}}
	err := s.hub.db.QueryRow(ctx, `
		SELECT coalesce((SELECT max(day) FROM event_days WHERE first_seq <= $1 + 1), '2000-01-01')`, position).Scan(&c.day)
	if err != nil {
		return nil, fmt.Errorf("find the day: %w", err)
	}
	rows, err := s.hub.db.Query(ctx, `
		SELECT convo_id, 0::bigint, true, requested_at IS NOT NULL FROM members WHERE did = $1 AND left_at IS NULL
		UNION ALL
		SELECT convo_id, stream_seq, detail->>'change' = 'joined', false FROM events WHERE did = $1 AND stream_seq > $2 AND day >= $3 AND kind = 4
		UNION ALL
		SELECT convo_id, $4::bigint, detail->>'change' = 'joined', false FROM (SELECT * FROM outbox WHERE did = $1 AND kind = 4 ORDER BY id) waiting`,
		s.did, position, c.day, int64(notYet))
	if err != nil {
		return nil, fmt.Errorf("read the subscriber's convos: %w", err)
	}
	var changes []change
	var one change
	var pending []uuid.UUID // requests
	_, err = pgx.ForEachRow(rows, []any{&one.convo, &one.at, &one.joined, &one.request}, func() error {
		switch {
		case !s.wants(one.convo):
		case one.at == 0: // the roster
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

// rewind changes convos from the roster of now to the convos at position.
func (c *catchUp) rewind(changes []change) {
	for _, ch := range slices.Backward(changes) {
		if ch.joined {
			delete(c.convos, ch.convo)
		} else {
			c.convos[ch.convo] = struct{}{}
		}
	}
}

// replay changes convos to the convos at upto, and collects the memberships on the way. A
// membership includes the event that ends it.
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

// page reads the next events. done says that there are no more up to upto.
func (c *catchUp) page(ctx context.Context) (page []*Event, done bool, err error) {
	if c.position >= c.upto {
		return nil, true, nil
	}
	var convos []uuid.UUID
	var from, to []int64
	for _, m := range c.memberships {
		if m.to > c.position {
			convos, from, to = append(convos, m.convo), append(from, max(m.from, c.position)), append(to, m.to)
		}
	}
	// Each page searches all convos, so that many convos need larger pages.
	limit := max(pageEvents, len(convos)/4)
	var found []*Event
	var first, newest int64
	both := &pgx.Batch{}
	both.Queue(`
		SELECT stream_seq, day, kind, convo_id, seq, did, size, detail, created_at FROM (
			SELECT e.* FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS m (convo_id, after, upto)
			CROSS JOIN LATERAL (
				SELECT * FROM events
				WHERE convo_id = m.convo_id AND stream_seq > m.after AND stream_seq <= m.upto AND day >= $4 AND kind <> 5
				ORDER BY stream_seq LIMIT $5
			) e
			UNION ALL
			(SELECT * FROM events
			WHERE did = $6 AND stream_seq > $7 AND stream_seq <= $8 AND day >= $4 AND kind IN (5, 6)
			ORDER BY stream_seq LIMIT $5)
		) found
		ORDER BY stream_seq LIMIT $5`,
		convos, from, to, c.day, limit, c.s.did, c.position, c.upto).Query(func(rows pgx.Rows) error {
		found, err = pgx.CollectRows(rows, c.s.of.scan)
		return err
	})
	// After the page: days that were dropped in between are noticed, and a new generation, which is
	// recorded before its first event.
	both.Queue(`SELECT (SELECT coalesce(min(first_seq), 0) FROM event_days), (SELECT max(id) FROM generations)`).
		QueryRow(func(row pgx.Row) error { return row.Scan(&first, &newest) })
	if err := c.s.hub.db.SendBatch(ctx, both).Close(); err != nil {
		return nil, false, fmt.Errorf("catch up: %w", err)
	}
	if first > c.position+1 || newest != c.s.of.newest().id {
		return nil, false, errNotThere
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
		if e.Kind.LogEntry() && e.Size <= largeEvent { // Next loads the large ones
			entries = append(entries, e)
		}
	}
	c.s.hub.mu.Unlock()
	if err := loadEntries(ctx, c.s.hub.db, entries); err != nil {
		return nil, false, fmt.Errorf("catch up: %w", err)
	}
	if done = len(page) == len(found) && len(found) < limit; done {
		c.position = c.upto
	} else {
		c.position = page[len(page)-1].StreamSeq
	}
	// Events for one person were found by the DID alone, so the unwanted convos are removed here.
	return slices.DeleteFunc(page, func(e *Event) bool { return !e.ofConvo() && !c.s.wants(e.ConvoID) }), done, nil
}
