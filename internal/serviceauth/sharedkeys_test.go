package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgtest"
	"mlsd/internal/worker"
)

// documents is a directory whose answers the test sets.
type documents struct {
	key     atcrypto.PublicKey
	err     error
	fetches int
	known   bool   // of the last fetch
	during  func() // called during a fetch
}

func (d *documents) fetch(_ context.Context, _ syntax.DID, known bool) (atcrypto.PublicKey, error) {
	d.fetches++
	d.known = known
	key, err := d.key, d.err
	if d.during != nil {
		d.during()
	}
	return key, err
}

// node returns a node on db that asks d.
func (d *documents) node(db *pgxpool.Pool) *CachedDirectory {
	return newCachedDirectory(time.Now, d.fetch, db)
}

// wantKey fails the test unless Resolve returns key, after so many fetches in all.
func (d *documents) wantKey(t *testing.T, node *CachedDirectory, key atcrypto.PublicKey, fetches int) {
	t.Helper()
	got, err := node.Resolve(t.Context(), alice)
	if err != nil || !got.Equal(key) || d.fetches != fetches {
		t.Fatalf("Resolve = %v, %v after %d fetches; want %v after %d", got, err, d.fetches, key, fetches)
	}
}

func syncKeys(t *testing.T, nodes ...*CachedDirectory) {
	t.Helper()
	for _, n := range nodes {
		if err := n.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// H4: a node that is new knows the accounts that verified on others. It does not know those that
// were only named.
func TestSharedKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	d := &documents{key: publicKey(t)}
	first, second := d.node(db), d.node(db)
	d.wantKey(t, first, d.key, 1)
	syncKeys(t, first)
	d.wantKey(t, second, d.key, 2) // nothing has verified

	first.Verified(alice, d.key)
	syncKeys(t, first)
	third := d.node(db)
	d.wantKey(t, third, d.key, 2)
	if !third.Known(alice).Verified {
		t.Error("the account is not known")
	}

	// An hour after its look-up the key is old on every node.
	exec(t, db, `UPDATE identity_keys SET fetched_at = fetched_at - interval '61 minutes'`)
	fourth := d.node(db)
	d.wantKey(t, fourth, d.key, 3)
	if !d.known {
		t.Error("the look-up is not that of a known account")
	}
	// In an outage it is used, for a day.
	d.err = errors.New("connection refused")
	d.wantKey(t, d.node(db), d.key, 4)
	exec(t, db, `UPDATE identity_keys SET fetched_at = fetched_at - interval '1 day'`)
	if key, err := d.node(db).Resolve(t.Context(), alice); !errors.Is(err, d.err) {
		t.Errorf("after a day: %v, %v", key, err)
	}
}

// heldReads is a database whose first Query waits until it is released. It counts all.
type heldReads struct {
	*pgxpool.Pool
	queries atomic.Int64
	release chan struct{}
}

func (h *heldReads) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if h.queries.Add(1) == 1 {
		<-h.release
	}
	return h.Pool.Query(context.WithoutCancel(ctx), sql, args...) // a busy machine takes longer than a node waits
}

// All nodes have restarted, and 5,000 accounts come back to each at once. The directory is asked for
// none, and a node reads their keys in a few calls. A key that was forgotten meanwhile is not used.
func TestReturn(t *testing.T) {
	t.Parallel()
	const accounts, nodes = 5000, 3
	db := pgtest.Database(t)
	dids, keys := make([]syntax.DID, accounts), map[syntax.DID]atcrypto.PublicKey{}
	some := []atcrypto.PublicKey{publicKey(t), publicKey(t), publicKey(t)}
	before := newCachedDirectory(time.Now,
		func(_ context.Context, did syntax.DID, _ bool) (atcrypto.PublicKey, error) { return keys[did], nil }, db)
	for i := range dids {
		dids[i] = syntax.DID(fmt.Sprintf("did:plc:%024d", i))
		keys[dids[i]] = some[i%len(some)]
		if _, err := before.Resolve(t.Context(), dids[i]); err != nil {
			t.Fatal(err)
		}
		before.Verified(dids[i], keys[dids[i]])
		if i%maxPending == 0 || i == accounts-1 {
			syncKeys(t, before)
		}
	}
	if err := before.Forget(t.Context(), dids[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `UPDATE identity_keys SET key = 'nonsense' WHERE did = $1`,
		dids[1].String()); err != nil {
		t.Fatal(err)
	}
	for node := range nodes {
		held := &heldReads{Pool: db, release: make(chan struct{})}
		var fetched sync.Map
		after := newCachedDirectory(time.Now, func(_ context.Context, did syntax.DID, _ bool) (atcrypto.PublicKey, error) {
			fetched.Store(did, true)
			return keys[did], nil
		}, held)
		after.shared.timeout = time.Minute // the reads are held until all accounts have come
		var all sync.WaitGroup
		var done atomic.Int64
		for _, did := range dids {
			all.Go(func() {
				defer done.Add(1)
				if key, err := after.Resolve(t.Context(), did); err != nil || !key.Equal(keys[did]) {
					t.Errorf("%s: %v, %v", did, key, err)
				}
			})
		}
		for under := 0; under < accounts; runtime.Gosched() {
			after.mu.Lock()
			under = len(after.loading) + int(done.Load())
			after.mu.Unlock()
		}
		close(held.release)
		all.Wait()
		asked := 0
		for range fetched.Range {
			asked++
		}
		_, forgotten := fetched.Load(dids[0])
		_, broken := fetched.Load(dids[1])
		if asked != 2 || !forgotten || !broken {
			t.Errorf("node %d: the directory was asked for %d accounts, want the forgotten one and the one whose row is of "+
				"no use", node, asked)
		}
		const few = 2 * accounts / readsOfCall
		if n := held.queries.Load(); n > few {
			t.Errorf("node %d: %d reads of the table, want at most %d", node, n, few)
		}
		t.Logf("node %d: %d look-ups at the directory, %d reads of the table", node, asked, held.queries.Load())
	}
}

// Forget drops a key on every node.
func TestForget(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	old, replaced := publicKey(t), publicKey(t)
	d := &documents{key: old}
	first, second := d.node(db), d.node(db)
	d.wantKey(t, first, old, 1)
	first.Verified(alice, old)
	syncKeys(t, first, second)
	d.wantKey(t, second, old, 1)

	d.key = replaced
	if err := first.Forget(t.Context(), alice); err != nil {
		t.Fatal(err)
	}
	d.wantKey(t, first, replaced, 2)
	d.wantKey(t, second, old, 2) // it does not know yet
	syncKeys(t, second)
	d.wantKey(t, second, replaced, 3)
	syncKeys(t, second)
	d.wantKey(t, second, replaced, 3) // a mark counts once

	// A key that was on its way when its DID was forgotten does not come back.
	third := d.node(db)
	d.during = func() {
		d.during = nil
		d.key = old
		if err := third.Forget(t.Context(), alice); err != nil {
			t.Error(err)
		}
	}
	d.wantKey(t, third, old, 5)
	second.Verified(alice, replaced)
	syncKeys(t, second)
	d.wantKey(t, d.node(db), old, 6)
}

// If one node finds a new key, the others drop the old one. If one finds that the account is gone,
// no other reads its key from the table.
func TestReplacedAndDeleted(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	old, replaced := publicKey(t), publicKey(t)
	d := &documents{key: old}
	first, second := d.node(db), d.node(db)
	d.wantKey(t, first, old, 1)
	first.Verified(alice, old)
	syncKeys(t, first)
	d.wantKey(t, second, old, 1)

	d.key = replaced
	if key, err := first.Refresh(t.Context(), alice); err != nil || !key.Equal(replaced) {
		t.Fatal(key, err)
	}
	first.Verified(alice, replaced)
	syncKeys(t, first, second)
	d.wantKey(t, second, replaced, 2) // from the table

	d.err = fmt.Errorf("%w: status 410", ErrIssuer)
	if _, err := first.Refresh(t.Context(), alice); !errors.Is(err, ErrIssuer) {
		t.Fatal(err)
	}
	syncKeys(t, second)
	for i, node := range []*CachedDirectory{first, second, d.node(db)} {
		if key, err := node.Resolve(t.Context(), alice); !errors.Is(err, ErrIssuer) {
			t.Errorf("node %d: %v, %v", i, key, err)
		}
	}
}

// H4: a key past its hour is not honoured because this server is busy.
func TestStaleKeyWhileBusy(t *testing.T) {
	t.Parallel()
	f := newCacheFixture(t)
	key := f.key
	f.want(t, key, nil, 1)
	f.now = f.now.Add(keyFresh)
	f.key, f.err = nil, ErrBusy
	f.want(t, nil, ErrBusy, 2)
	f.key, f.err = nil, errors.New("connection refused")
	f.want(t, key, nil, 3)
}

// H4: the key of an account that verified is not pushed out of memory by any number of others.
func TestVerifiedKeysStay(t *testing.T) {
	t.Parallel()
	f := newCacheFixture(t)
	f.want(t, f.key, nil, 1)
	f.Verified(alice, f.key)
	for i := range verifiedKeys + otherKeys {
		if _, err := f.Resolve(t.Context(), syntax.DID(fmt.Sprintf("did:plc:%024d", i))); err != nil {
			t.Fatal(err)
		}
	}
	f.want(t, f.key, nil, 1+verifiedKeys+otherKeys)
}

// Sweep deletes old marks, accounts that have been away for a month, and the oldest of too many.
func TestSweepKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	exec(t, db, `
		INSERT INTO identity_keys (did, version, fetched_at, verified_at, forgotten_at) VALUES
		('new', 0, now(), now(), NULL),
		('away', 0, now() - interval '31 days', now() - interval '31 days', NULL),
		('new mark', 1, now(), NULL, now()),
		('old mark', 1, now() - interval '2 hours', NULL, now() - interval '2 hours'),
		('known, forgotten', 1, now() - interval '2 hours', now() - interval '2 hours', now() - interval '2 hours')`)
	if n := pgtest.Sweep(t, SweepKeys(db))["identity_keys"]; n != 2 {
		t.Errorf("%d rows deleted, want 2", n)
	}
	if _, err := db.Exec(t.Context(), sweepKeys, worker.SweepRows, keepIdentity, keepMark, 2); err != nil {
		t.Fatal(err)
	}
	var left string
	if err := db.QueryRow(t.Context(),
		`SELECT string_agg(did, ', ' ORDER BY did) FROM identity_keys`).Scan(&left); err != nil || left != "new, new mark" {
		t.Errorf("left: %s, %v", left, err)
	}
}

func exec(t *testing.T, db *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
