package events_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

const (
	holder      syntax.DID = "did:plc:alice"
	other       syntax.DID = "did:plc:bob"
	ticketScope            = "blue.catbird.mls.subscribeConvoEvents"
)

// twoNodes returns two pools on one database.
func twoNodes(t *testing.T) [2]*pgxpool.Pool {
	t.Helper()
	url := pgtest.URL(t)
	var nodes [2]*pgxpool.Pool
	for i := range nodes {
		db, err := pgpool.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		nodes[i] = db
	}
	return nodes
}

func issue(t *testing.T, tickets *events.Tickets, did syntax.DID) string {
	t.Helper()
	ticket, _, err := tickets.Issue(t.Context(), events.Holder{DID: did}, ticketScope)
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

// If many requests use a ticket at once, on any nodes, one succeeds, as the DID that it was issued
// to.
func TestTicketOnce(t *testing.T) {
	t.Parallel()
	nodes := twoNodes(t)
	for range 5 {
		ticket := issue(t, events.NewTickets(nodes[0]), holder)
		var redeemed atomic.Int32
		var all sync.WaitGroup
		begin := make(chan struct{})
		for i := range 32 {
			all.Go(func() {
				<-begin
				did, err := events.NewTickets(nodes[i%2]).Redeem(t.Context(), ticket, ticketScope)
				switch {
				case err == nil && did == holder:
					redeemed.Add(1)
				case !errors.Is(err, events.ErrInvalidTicket):
					t.Errorf("%s, %v", did, err)
				}
			})
		}
		close(begin)
		all.Wait()
		if n := redeemed.Load(); n != 1 {
			t.Fatalf("redeemed %d times", n)
		}
	}
}

// A ticket opens the method it was issued for within a minute. An attempt at another method does
// not use it up.
func TestTicketScopeAndExpiry(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	tickets := events.NewTickets(db)
	ticket, expires, err := tickets.Issue(t.Context(), events.Holder{DID: holder}, ticketScope)
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(expires); len(ticket) != 43 || left < 50*time.Second || left > time.Minute ||
		expires.Nanosecond()%1e6 != 0 {
		t.Fatalf("%q until %v", ticket, expires)
	}
	for _, try := range []struct{ ticket, scope string }{{ticket, "blue.catbird.mls.streamConvoEvents"},
		{ticket + "=", ticketScope}, {"", ticketScope}} {
		if _, err := tickets.Redeem(t.Context(), try.ticket, try.scope); !errors.Is(err, events.ErrInvalidTicket) {
			t.Errorf("%q for %s: %v", try.ticket, try.scope, err)
		}
	}
	pgtest.Age(t, db, "subscription_tickets", 50*time.Second)
	late := issue(t, tickets, other)
	if did, err := tickets.Redeem(t.Context(), ticket, ticketScope); err != nil || did != holder {
		t.Fatalf("within its minute: %s, %v", did, err)
	}
	pgtest.Age(t, db, "subscription_tickets", time.Minute)
	if _, err := tickets.Redeem(t.Context(), late, ticketScope); !errors.Is(err, events.ErrInvalidTicket) {
		t.Fatalf("after its minute: %v", err)
	}
}

// Expired tickets are deleted, in as many batches as needed, and no others.
func TestTicketSweep(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	tickets := events.NewTickets(db)
	_, err := db.Exec(t.Context(), `
		INSERT INTO subscription_tickets (hash, did, scope, expires_at)
		SELECT int4send(n), $1, $2, now() FROM generate_series(1, 2500) AS n`, other, ticketScope)
	if err != nil {
		t.Fatal(err)
	}
	ticket := issue(t, tickets, holder)
	pgtest.Sweep(t, events.SweepTickets(db))
	if n := countRows(t, db, `SELECT count(*) FROM subscription_tickets`); n != 1 {
		t.Fatalf("%d are left", n)
	}
	if _, err := tickets.Redeem(t.Context(), ticket, ticketScope); err != nil {
		t.Fatal(err)
	}
}

// The number of tickets of one DID is limited. Its oldest are deleted, and no one else's.
func TestTicketsOfOneDID(t *testing.T) {
	t.Parallel()
	nodes := twoNodes(t)
	first, others := issue(t, events.NewTickets(nodes[0]), holder), issue(t, events.NewTickets(nodes[0]), other)
	pgtest.Age(t, nodes[0], "subscription_tickets", time.Second)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 25 {
				if _, _, err := events.NewTickets(nodes[i%2]).Issue(t.Context(), events.Holder{DID: holder},
					ticketScope); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	tickets := events.NewTickets(nodes[1])
	last := issue(t, tickets, holder)
	if n := countRows(t, nodes[0], `SELECT count(*) FROM subscription_tickets WHERE did = $1`, holder); n != 100 {
		t.Errorf("%d are outstanding", n)
	}
	if _, err := tickets.Redeem(t.Context(), first, ticketScope); !errors.Is(err, events.ErrInvalidTicket) {
		t.Errorf("the oldest: %v", err)
	}
	for _, ticket := range []string{last, others} {
		if _, err := tickets.Redeem(t.Context(), ticket, ticketScope); err != nil {
			t.Error(err)
		}
	}
}

func countRows(t *testing.T, db *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
