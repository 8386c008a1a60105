package accounts_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgtest"
	"mlsd/internal/tombstone"
	"mlsd/people/accounts"
)

const (
	alice = syntax.DID("did:plc:aaaaaaaaaaaaaaaaaaaaaaaa")
	bob   = syntax.DID("did:plc:bbbbbbbbbbbbbbbbbbbbbbbb")
	carol = syntax.DID("did:plc:cccccccccccccccccccccccc")
	relay = "repos wss://relay.example.com"
)

// fixture is a store on a database of its own.
type fixture struct {
	*testing.T
	db    *pgxpool.Pool
	store *accounts.Store
}

// alone is a HandOver where nobody is in a convo.
func alone(_ context.Context, _ pgx.Tx, _ []syntax.DID, refuse func() error) error { return refuse() }

const eraseAfter = 30 * 24 * time.Hour

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{T: t, db: pgtest.Database(t), store: accounts.NewStore(eraseAfter, alone)}
}

func (f *fixture) check(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// known makes the service know accounts: they get a push target each.
func (f *fixture) known(dids ...syntax.DID) {
	f.Helper()
	_, err := f.db.Exec(f.Context(), `
		INSERT INTO push_targets (did, device_id, kind, address, created_at, registration)
		SELECT did, 'phone', 'webhook', 'https://example.com', now(), gen_random_uuid() FROM unnest($1::text[]) AS named
			(did)`, dids)
	f.check(err)
}

func (f *fixture) block(did syntax.DID) {
	f.Helper()
	f.check(f.store.Block(f.Context(), f.db, did, "olga", "spam"))
}

func (f *fixture) tx(do func(pgx.Tx) error) {
	f.Helper()
	f.check(pgx.BeginFunc(f.Context(), f.db, do))
}

// erase ends the erasure of an account.
func (f *fixture) erase(did syntax.DID) {
	f.Helper()
	p := tombstone.Person{DID: did, Salt: tombstone.NewSalt()}
	f.tx(func(tx pgx.Tx) error { return f.store.EndErasure(f.Context(), tx, p) })
}

// set states what the relay says, and returns the DIDs that were stored.
func (f *fixture) set(changes ...accounts.Change) (stored []syntax.DID) {
	f.Helper()
	all, err := f.store.SetStatus(f.Context(), f.db, relay, changes)
	f.check(err)
	for _, c := range all {
		stored = append(stored, c.DID)
	}
	return stored
}

func (f *fixture) get(did syntax.DID) accounts.Account {
	f.Helper()
	a, err := f.store.Get(f.Context(), f.db, did)
	f.check(err)
	return a
}

// noon is the relay's time of the tests. The times of its events are seconds after it.
var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func change(did syntax.DID, status accounts.Status, seq int64) accounts.Change {
	return accounts.Change{DID: did, Status: status, Seq: seq, At: noon.Add(time.Duration(seq) * time.Second)}
}

// node is the gate of one node, and what it has told its node.
type node struct {
	*accounts.Gate
	f       *fixture
	refused map[syntax.DID]error
}

// node returns a gate that has been loaded.
func (f *fixture) node(options ...func(*accounts.GateConfig)) *node {
	f.Helper()
	n := &node{f: f, refused: map[syntax.DID]error{}}
	c := accounts.GateConfig{
		DB: f.db, Log: slog.New(slog.DiscardHandler),
		OnRefused: func(did syntax.DID, why error) { n.refused[did] = why },
	}
	for _, o := range options {
		o(&c)
	}
	var err error
	n.Gate, err = accounts.NewGate(c)
	f.check(err)
	f.check(n.Load(f.Context()))
	return n
}

// update reads what has changed.
func (n *node) update() {
	n.f.Helper()
	n.f.check(n.RunOnce(n.f.Context()))
}

// check is Check with the context of the test.
func (n *node) check(did syntax.DID) error { return n.Check(context.Background(), did) }
