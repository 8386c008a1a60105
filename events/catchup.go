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
	pageBytes  = 256 << 10 // of the log entries of one page; and one more, however large
)

// errDropped says that days were dropped before they had been read.
var errDropped = errors.New("the events that come next are not kept any more")

// catchUp reads the table from a subscription's position to a place that has been reached already.
type catchUp struct {
	s        *Subscription
	position int64 // everything up to here has been read
	upto     int64
	day      time.Time              // no event behind position is older
	terms    []term                 // in which the DID was a member, from position to upto
	convos   map[uuid.UUID]struct{} // of which it is one at upto
}

// term is a part of the stream in which somebody is entitled to a convo's events: from < stream_seq ≤ to.
type term struct {
	convo    uuid.UUID
	from, to int64
}

// change is a membership event of the subscriber's own. One that has no place in the stream yet is behind all that have.
type change struct {
	convo  uuid.UUID
	at     int64
	joined bool
}

const notYet = 1<<63 - 1

// begin finds what the subscriber is entitled to between two places of the stream.
//
// One statement sees the roster, the stream and the outbox at one moment. The roster says what is true then; going back over what has
// changed since position says what was true there: before a member's joining it was none, before its leaving it was one.
func (s *Subscription) begin(ctx context.Context, position, upto int64) (*catchUp, error) {
	c := &catchUp{s: s, position: position, upto: upto, convos: map[uuid.UUID]struct{}{}}
	err := s.hub.db.QueryRow(ctx, `
		SELECT coalesce((SELECT max(day) FROM event_days WHERE first_seq <= $1 + 1), '2000-01-01')`, position).Scan(&c.day)
	if err != nil {
		return nil, fmt.Errorf("find the day: %w", err)
	}
	rows, err := s.hub.db.Query(ctx, `
		SELECT convo_id, 0::bigint, true FROM members WHERE did = $1 AND left_at IS NULL
		UNION ALL
		SELECT convo_id, stream_seq, detail->>'change' = 'joined' FROM events WHERE did = $1 AND stream_seq > $2 AND day >= $3 AND kind = 4
		UNION ALL
		SELECT convo_id, $4::bigint, detail->>'change' = 'joined' FROM (SELECT * FROM outbox WHERE did = $1 AND kind = 4 ORDER BY id) waiting`,
		s.did, position, c.day, int64(notYet))
	if err != nil {
		return nil, fmt.Errorf("read the subscriber's convos: %w", err)
	}
	var changes []change
	var one change
	_, err = pgx.ForEachRow(rows, []any{&one.convo, &one.at, &one.joined}, func() error {
		switch {
		case !s.wants(one.convo):
		case one.at == 0:
			c.convos[one.convo] = struct{}{}
		default:
			changes = append(changes, one)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the subscriber's convos: %w", err)
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	c.goBack(changes)
	c.goForth(changes)
	return c, nil
}

// goBack makes convos what it was at position.
func (c *catchUp) goBack(changes []change) {
	for _, ch := range slices.Backward(changes) {
		if ch.joined {
			delete(c.convos, ch.convo)
		} else {
			c.convos[ch.convo] = struct{}{}
		}
	}
}

// goForth makes it what it is at upto, and notes the terms on the way. A term ends with the event of its end.
func (c *catchUp) goForth(changes []change) {
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
			c.terms = append(c.terms, term{ch.convo, from, ch.at})
			delete(since, ch.convo)
		}
	}
	clear(c.convos)
	for convo, from := range since {
		c.terms = append(c.terms, term{convo, from, c.upto})
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
	for _, t := range c.terms {
		if t.to > c.position {
			convos, from, to = append(convos, t.convo), append(from, max(t.from, c.position)), append(to, t.to)
		}
	}
	limit := max(pageEvents, len(convos)/4) // who is in many convos asks all of them each time
	rows, err := c.s.hub.db.Query(ctx, `
		SELECT `+columns+` FROM (
			SELECT e.* FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS t (convo_id, after, upto)
			CROSS JOIN LATERAL (
				SELECT * FROM events
				WHERE convo_id = t.convo_id AND stream_seq > t.after AND stream_seq <= t.upto AND day >= $4 AND kind <> 5
				ORDER BY stream_seq LIMIT $5
			) e
			UNION ALL
			(SELECT * FROM events
			WHERE did = $6 AND stream_seq > $7 AND stream_seq <= $8 AND day >= $4 AND kind IN (5, 6)
			ORDER BY stream_seq LIMIT $5)
		) found
		ORDER BY stream_seq LIMIT $5`, convos, from, to, c.day, limit, c.s.did, c.position, c.upto)
	if err != nil {
		return nil, false, fmt.Errorf("catch up: %w", err)
	}
	found, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, false, fmt.Errorf("catch up: %w", err)
	}
	var first int64
	if err := c.s.hub.db.QueryRow(ctx, `SELECT coalesce(min(first_seq), 0) FROM event_days`).Scan(&first); err != nil {
		return nil, false, fmt.Errorf("catch up: %w", err)
	}
	if first > c.position+1 {
		return nil, false, errDropped
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
		if e.Kind.LogEntry() && e.Size <= largeEvent { // the others when it is their turn
			entries = append(entries, e)
		}
	}
	c.s.hub.mu.Unlock()
	if err := fetch(ctx, c.s.hub.db, entries); err != nil {
		return nil, false, fmt.Errorf("catch up: %w", err)
	}
	if done = len(page) == len(found) && len(found) < limit; done {
		c.position = c.upto
	} else {
		c.position = page[len(page)-1].StreamSeq
	}
	// Those for one person are found by that, whatever they concern.
	return slices.DeleteFunc(page, func(e *Event) bool { return !e.ofConvo() && !c.s.wants(e.ConvoID) }), done, nil
}
