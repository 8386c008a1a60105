package sessions

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
)

const (
	// rotateEvery is the age at which a key gets a successor.
	rotateEvery = 24 * time.Hour
	// activeAfter is the age at which a key begins to sign. Every node that trusts sessions has
	// read the key by then.
	activeAfter = 2 * trustFor
	// keepReplaced is how old a key's successor is when the key is deleted. By then, the last
	// bearer that the key signed has expired, even on a node whose clock is minutes behind.
	keepReplaced = activeAfter + bearerLife + 5*time.Minute
)

// keys are the keys of the HMAC.
type keys struct {
	byID  map[int32]*macKey
	order []signingKey // the oldest key first
}

type signingKey struct {
	id     int32
	key    *macKey
	active time.Time // when the key begins to sign, by this node's clock
}

// macKey is a key of the HMAC.
type macKey struct {
	hashes sync.Pool // holds hash.Hash values with the key, because making one costs more than using one
}

func newMACKey(key []byte) *macKey {
	return &macKey{hashes: sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}
}

// mac returns the HMAC-SHA256 of prefix and content.
func (k *macKey) mac(prefix string, content []byte) []byte {
	h := k.hashes.Get().(hash.Hash)
	defer k.hashes.Put(h)
	h.Reset()
	h.Write([]byte(prefix)) // a Hash returns no error
	h.Write(content)
	return h.Sum(nil)
}

// signer returns the newest key that signs at now. If no key signs yet, it returns the newest key.
// ok is false if there is no key.
func (k *keys) signer(now time.Time) (key signingKey, ok bool) {
	for i := len(k.order) - 1; i >= 0; i-- {
		if !now.Before(k.order[i].active) {
			return k.order[i], true
		}
	}
	if n := len(k.order); n > 0 {
		return k.order[n-1], true
	}
	return key, false
}

// key returns a key, or nil.
func (s *Service) key(id int32) *macKey {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.keys.byID[id]
}

// signer is keys.signer for the present. Error: serviceauth.ErrUnavailable, if there is no key.
func (s *Service) signer() (signingKey, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	key, ok := s.keys.signer(s.cfg.Now())
	if !ok {
		return key, fmt.Errorf("%w: there is no key to sign sessions with", serviceauth.ErrUnavailable)
	}
	return key, nil
}

// readKeys reads all keys.
func (s *Service) readKeys(ctx context.Context) (keys, error) {
	began := s.cfg.Now()
	rows := pgpool.Rows(ctx, s.cfg.DB, `SELECT id, key, clock_timestamp() - created_at FROM session_keys ORDER BY id`)
	found := keys{byID: map[int32]*macKey{}}
	var id int32
	var key []byte
	var age time.Duration
	_, err := pgx.ForEachRow(rows, []any{&id, &key, &age}, func() error {
		found.byID[id] = newMACKey(key)
		found.order = append(found.order, signingKey{id: id, key: found.byID[id], active: began.Add(activeAfter - age)})
		key = nil // so that the next row gets its own memory
		return nil
	})
	return found, errs.Wrap(err, "read the keys of sessions")
}

func newKey() []byte {
	key := make([]byte, sha256.Size)
	rand.Read(key) // never fails
	return key
}

// Rotate makes a new key if the newest key is a day old or there is no key. It deletes keys whose
// tokens have all expired. Only one node at a time does this. Rotate also forgets ended sessions
// whose bearers have expired.
func (s *Service) Rotate(ctx context.Context) error {
	s.forgetExpired()
	batch := &pgx.Batch{}
	batch.Queue(`SELECT FROM session_clock FOR UPDATE`)
	// This is a statement of its own, so that it sees what was committed while it waited for the
	// lock.
	batch.Queue(`
		WITH made AS (
			INSERT INTO session_keys (key, created_at)
			SELECT $1, clock_timestamp()
			WHERE NOT EXISTS (SELECT FROM session_keys WHERE created_at > clock_timestamp() - $2::interval)
			RETURNING id
		), deleted AS (
			DELETE FROM session_keys k
			WHERE EXISTS (SELECT FROM session_keys n WHERE n.id > k.id AND n.created_at < clock_timestamp() - $3::interval)
			RETURNING id
		)
		UPDATE session_clock SET version = version + 1 WHERE EXISTS (SELECT FROM made) OR EXISTS (SELECT FROM deleted)`,
		newKey(), rotateEvery, keepReplaced)
	err := pgx.BeginFunc(ctx, s.cfg.DB, func(tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	return errs.Wrap(err, "rotate the keys of sessions")
}

// Restored ends all sessions, because the database has gone back to an earlier state and may have
// lost the ends of some sessions. It deletes the keys that signed the sessions.
func Restored(ctx context.Context, db pgpool.Execer) error { return replaceKeys(ctx, db, nil) }

// replaceKeys replaces all keys by a new key, unless the clock is already past seen. If the clock
// has gone back, it becomes newer than seen, so that every node reads the new key. If seen is nil,
// replaceKeys replaces the keys in any case.
func replaceKeys(ctx context.Context, db pgpool.Execer, seen *int64) error {
	_, err := db.Exec(ctx, `
		WITH clock AS (
			UPDATE session_clock SET version = greatest(version, coalesce($1::bigint, 0)) + 1
			WHERE $1::bigint IS NULL OR version < $1::bigint
			RETURNING version
		), deleted AS (
			DELETE FROM session_keys WHERE EXISTS (SELECT FROM clock)
		)
		INSERT INTO session_keys (key, created_at) SELECT $2, clock_timestamp() FROM clock`, seen, newKey())
	return errs.Wrap(err, "replace the keys of sessions")
}
