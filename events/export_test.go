package events

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// KeepEvents is how many of the newest events a hub remembers.
const KeepEvents = keepEvents

// Ahead adds d to the sequencer's clock, and makes it maintain its partitions in the next round.
func (s *Sequencer) Ahead(d time.Duration) { s.partitions.ahead, s.maintainDue = d, time.Time{} }

// Round does one round of the sequencer.
func (s *Sequencer) Round(ctx context.Context) (bool, error) {
	moved, err := s.round(ctx)
	return moved > 0, err
}

// Resign gives up the lead, and waits until PostgreSQL has ended the session: then another node can
// lead. It does not wait for a PostgreSQL that does not answer.
func (s *Sequencer) Resign() {
	if s.conn == nil {
		return
	}
	session := s.conn.PgConn().PID()
	s.resign()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for leads := true; leads; {
		if s.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = $1)`,
			session).Scan(&leads) != nil {
			return
		}
	}
}

// Leads reports whether this node leads.
func (s *Sequencer) Leads() bool { return s.conn != nil }

// TryNow makes the next round try to lead.
func (s *Sequencer) TryNow() { s.tried, s.looked = time.Time{}, time.Time{} }

// SeekFloorNow makes the next round try to raise the floor.
func (s *Sequencer) SeekFloorNow() { s.floor.due = time.Time{} }

// Floor returns the floor of the outbox.
func (s *Sequencer) Floor() int64 { return s.floor.at }

// Conn is the leader's session.
func (s *Sequencer) Conn() *pgx.Conn { return s.conn }

// Round does one round of the hub.
func (h *Hub) Round(ctx context.Context) (bool, error) { return h.round(ctx) }

// Due reports whether the hub is to read now.
func (h *Hub) Due() bool { return h.due() }

// Forget makes the hub forget the events that it remembers. They are indexed before, in parts of at
// least part places and twice as many at most.
func (h *Hub) Forget(t testing.TB, part int) {
	t.Helper()
	if err := NewPartIndex(h.cfg.DB, part).RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := readStream(t.Context(), h.cfg.DB)
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.indexed, h.memory = s.indexed, memory{}
}

// WindowAfter is the window of a reader that has found n pages empty.
func WindowAfter(n int) int64 {
	c := &catchUp{window: firstWindow}
	for range n {
		c.move(nil, c.place, false)
	}
	return c.window
}

// ForgetAll makes the hub forget the events that it remembers, also those that are not indexed.
func (h *Hub) ForgetAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.memory = memory{}
}

// NewPartIndex returns an index that indexes parts of other lengths, with short rows.
func NewPartIndex(db *pgxpool.Pool, part int) *Index { return &Index{db: db, part: part, row: 3} }

// Live reports whether the subscription gets its events from the hub.
func (s *Subscription) Live() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

// Place is the place up to which a subscription that is not live has its events.
func (s *Subscription) Place() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place
}

// SetClock sets the clock by which readers are behind.
func (h *Hub) SetClock(now func() time.Time) { h.now = now }

// CheckNow makes the next round that finds no event check whether the stream has gone back.
func (h *Hub) CheckNow() { h.checked = time.Time{} }

// CursorText writes a cursor as ParseCursor reads it.
func CursorText(c Cursor) string {
	switch {
	case c == oldest:
		return "0"
	case c.Generation == byNumber:
		return strconv.FormatInt(c.Seq, 10)
	}
	return generation{id: c.Generation}.position(c.Seq)
}

// HoldTurn takes the turn to read of the subscriptions of did, until release is called.
func (h *Hub) HoldTurn(did syntax.DID) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	turn := h.shares[did].reading
	turn <- struct{}{}
	return func() { <-turn }
}

// Know makes the hub believe that it has read the stream up to a place, until the returned function
// is called.
func (h *Hub) Know(place int64) (forget func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.head
	h.head = place
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.head = before
	}
}
