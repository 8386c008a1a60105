package serviceauth

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/batch"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/worker"
)

const (
	// SyncInterval is how often [CachedDirectory.Sync] is to be called. A node uses a key for up to
	// this long after another node has forgotten it.
	SyncInterval = 2 * time.Second
	// maxPending is how many keys can wait for Sync. Any further key is only in memory.
	maxPending = 4096
	// syncMarks bounds the forgotten DIDs that one Sync reads. If there are more, the node forgets all
	// keys.
	syncMarks = 4096
	// markOverlap is how far a Sync reads back beyond the last Sync, because a transaction that was
	// running then can write earlier marks.
	markOverlap = 30 * time.Second
	// keepMark is how long a forgotten DID without a verified token keeps its row. A node that
	// could not Sync for half as long forgets all keys.
	keepMark = time.Hour
	// keepIdentity is how long the row of an account that verified is kept after its last look-up.
	keepIdentity = 30 * 24 * time.Hour
	// maxIdentities is how many rows Sweep leaves, of 200 bytes each.
	maxIdentities = 1_000_000
	// readTimeout is the longest time to read a row. After that, the directory is asked.
	readTimeout = time.Second
	// readsOfCall bounds the rows of one call, and readsWaiting the rows that wait for the next
	// calls.
	readsOfCall, readsWaiting = 512, verifiedKeys
)

// unread is the version of a row that could not be read.
const unread = -1

// sharedKeys are the keys that all nodes share, in the table
//
//	CREATE TABLE identity_keys (
//		did          text COLLATE "C" PRIMARY KEY,
//		key          text,                 -- as a did:key; NULL: forgotten
//		version      bigint NOT NULL,      -- changes when the key is forgotten or replaced
//		fetched_at   timestamptz NOT NULL, -- from the directory
//		verified_at  timestamptz,          -- NULL: no token of the account has verified
//		forgotten_at timestamptz           -- of the last change of version
//	)
//
// The table gets only keys with which a token has verified. All times are of the database's clock.
type sharedKeys struct {
	db      pgpool.DB
	reads   *batch.Batcher[syntax.DID, storedKey]
	timeout time.Duration // of a read; readTimeout, except in tests
}

func newSharedKeys(db pgpool.DB) *sharedKeys {
	s := &sharedKeys{db: db, timeout: readTimeout}
	s.reads = batch.New(batch.Limits{Batch: readsOfCall, Queue: readsWaiting, Timeout: readTimeout}, s.readAll)
	return s
}

// storedKey is a row of the table. The zero storedKey says that there is no row.
type storedKey struct {
	key      *string // as a did:key
	age      time.Duration
	version  int64
	verified bool
}

// row is what the table knows of a DID. The zero value says that the table has no row.
type row struct {
	key      atcrypto.PublicKey // nil means none
	age      time.Duration      // since the key was fetched
	version  int64
	verified bool // a token of the account has verified before
}

// read returns the row of did. Simultaneous reads share a round trip, because many accounts return
// to a new node at once. If the table cannot be read, the version is unread.
func (s *sharedKeys) read(ctx context.Context, did syntax.DID) row {
	if s == nil {
		return row{version: unread}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	stored, err := s.reads.Do(ctx, did)
	if err != nil {
		return row{version: unread}
	}
	r := row{age: max(0, stored.age), version: stored.version, verified: stored.verified}
	if stored.key == nil {
		return r
	}
	if r.key, err = atcrypto.ParsePublicDIDKey(*stored.key); err != nil {
		return row{version: unread}
	}
	return r
}

// readAll reads the rows of the accounts, in order.
func (s *sharedKeys) readAll(ctx context.Context, dids []syntax.DID) ([]storedKey, error) {
	asked := make(pgpool.Array[pgpool.Text], len(dids))
	for i, did := range dids {
		asked[i] = pgpool.Text(did)
	}
	rows := pgpool.Rows(ctx, s.db, `
		SELECT did, key, clock_timestamp() - fetched_at, version, verified_at IS NOT NULL
		FROM identity_keys WHERE did = ANY ($1)`, asked)
	found := make(map[syntax.DID]storedKey, len(dids))
	var did syntax.DID
	var k storedKey
	if _, err := pgx.ForEachRow(rows, []any{(*string)(&did), &k.key, &k.age, &k.version, &k.verified}, func() error {
		found[did] = k
		return nil
	}); err != nil {
		return nil, err
	}
	all := make([]storedKey, len(dids))
	for i, did := range dids {
		all[i] = found[did]
	}
	return all, nil
}

// forget marks did, so that no node uses its key.
func (s *sharedKeys) forget(ctx context.Context, did syntax.DID) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO identity_keys (did, version, fetched_at, forgotten_at)
		VALUES ($1, 1, clock_timestamp(), clock_timestamp())
		ON CONFLICT (did) DO UPDATE
		SET key = NULL, version = identity_keys.version + 1, forgotten_at = clock_timestamp()`, did.String())
	return errs.Wrap(err, "serviceauth: forget a key")
}

// writeKeys inserts keys, unless a key was forgotten or replaced after its look-up began.
//
//go:embed write_keys.sql
var writeKeys string

// write stores keys with which tokens verified.
func (s *sharedKeys) write(ctx context.Context, now time.Time, keys map[syntax.DID]cachedKey) error {
	if len(keys) == 0 {
		return nil
	}
	var (
		dids, texts    pgpool.Array[pgpool.Text]
		versions, ages pgpool.Array[pgpool.Int]
	)
	for did, k := range keys {
		dids, texts = append(dids, pgpool.Text(did)), append(texts, pgpool.Text(k.key.DIDKey()))
		versions, ages = append(versions, pgpool.Int(k.version)), append(ages, pgpool.Int(now.Sub(k.fetched).Microseconds()))
	}
	_, err := s.db.Exec(ctx, writeKeys, dids, texts, versions, ages)
	return errs.Wrap(err, "serviceauth: write keys")
}

// marks are the forgotten DIDs that a node knows.
type marks struct {
	read time.Time // when they were last read, by this node's clock
	seen map[syntax.DID]int64
}

// forgotten returns the DIDs whose version has changed within since, with their versions. It
// returns at most syncMarks of them.
func (s *sharedKeys) forgotten(ctx context.Context, since time.Duration) (map[syntax.DID]int64, error) {
	rows := pgpool.Rows(ctx, s.db, `
		SELECT did, version FROM identity_keys
		WHERE forgotten_at > clock_timestamp() - $1::interval
		ORDER BY forgotten_at LIMIT $2`, since, syncMarks)
	found := map[syntax.DID]int64{}
	var did syntax.DID
	var version int64
	_, err := pgx.ForEachRow(rows, []any{(*string)(&did), &version}, func() error {
		found[did] = version
		return nil
	})
	return found, errs.Wrap(err, "serviceauth: read forgotten keys")
}

// Sync stores the keys with which tokens verified since the last Sync, and drops those that other
// nodes forgot or replaced.
func (c *CachedDirectory) Sync(ctx context.Context) error {
	if c.shared == nil {
		return nil
	}
	return errors.Join(c.readMarks(ctx), c.writePending(ctx))
}

// readMarks drops the keys that other nodes forgot. A node that missed marks drops all keys.
func (c *CachedDirectory) readMarks(ctx context.Context) error {
	began := c.now()
	c.mu.Lock()
	last := c.marks
	c.mu.Unlock()
	since := markOverlap
	if !last.read.IsZero() {
		since += began.Sub(last.read)
	}
	found, err := c.shared.forgotten(ctx, since)
	if err != nil {
		return err
	}
	if since > keepMark/2 || len(found) == syncMarks {
		c.dropAll()
	} else {
		for did, version := range found {
			if last.seen[did] != version {
				c.drop(did)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marks = marks{read: began, seen: found}
	return nil
}

// dropAll forgets all DIDs on this node.
func (c *CachedDirectory) dropAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verified.Purge()
	c.others.Purge()
	c.failures.Purge()
	clear(c.pending)
	for _, l := range c.loading {
		l.void = true
	}
	clear(c.loading)
}

// writePending stores the keys that wait for Sync. If that fails, the keys stay in memory only.
func (c *CachedDirectory) writePending(ctx context.Context) error {
	c.mu.Lock()
	pending := c.pending
	c.pending = map[syntax.DID]cachedKey{}
	c.mu.Unlock()
	return c.shared.write(ctx, c.now(), pending)
}

// SweepKeys deletes rows that no node needs any more: marks after an hour, and accounts 30 days
// after their last look-up. If more than a million rows remain, it deletes the oldest.
func SweepKeys(db *pgxpool.Pool) worker.Sweep {
	return worker.Statement(db, "identity_keys", sweepKeys, keepIdentity, keepMark, maxIdentities)
}

// sweepKeys deletes rows that no node needs any more.
//
//go:embed sweep_keys.sql
var sweepKeys string
