package transparency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"mlsd/internal/pgpool"

	"github.com/jackc/pgx/v5"
)

const (
	// Overlap is how long a key must sign together with the next key. A device that was away for
	// that long still finds a head that a key known to it has signed.
	Overlap = 90 * 24 * time.Hour
	// known is how long after a key was made all nodes sign with it. They read the keys every
	// second.
	known = 10 * time.Second
	// maxSigners bounds the keys that sign at the same time, because each makes heads longer.
	maxSigners = 3
)

// ErrNoKey says that no key has the id.
var ErrNoKey = errors.New("there is no such key of log heads")

// KeyError says why a key is not added, retired or withheld now.
type KeyError struct{ Why string }

func (e *KeyError) Error() string { return e.Why }

// ListKeys returns all keys, the oldest first.
func (s *Service) ListKeys(ctx context.Context, q pgpool.DB) ([]Key, error) {
	ring, err := s.loadKeys(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("list the keys of log heads: %w", err)
	}
	return ring.keys, nil
}

// AddKey makes a key. A second after the commit, all nodes sign with this key and the older keys.
// Error: *KeyError.
func (s *Service) AddKey(ctx context.Context, tx pgx.Tx) (k Key, err error) {
	ring, err := s.lockKeys(ctx, tx)
	if err != nil {
		return k, fmt.Errorf("add a key of log heads: %w", err)
	}
	if len(ring.signers) >= maxSigners {
		return k, &KeyError{fmt.Sprintf("%d keys sign already: retire one first", len(ring.signers))}
	}
	id, err := insertKey(ctx, tx)
	if err == nil {
		ring, err = s.loadKeys(ctx, tx)
	}
	if err != nil {
		return k, fmt.Errorf("add a key of log heads: %w", err)
	}
	return ring.keys[slices.IndexFunc(ring.keys, func(k Key) bool { return k.ID == id })], nil
}

// Retired is the result of RetireKey.
type Retired struct {
	Changed bool      // false if the key had no seed
	Since   time.Time // since when the oldest key that still signs has signed
	Early   bool      // Since is less than Overlap ago
}

// RetireKey deletes the seed of a key. The public key stays, and checks old heads. Unless early is
// true, one of the other keys must have signed for Overlap. Errors: ErrNoKey, *KeyError.
func (s *Service) RetireKey(ctx context.Context, tx pgx.Tx, id int32, early bool) (r Retired, err error) {
	ring, k, err := s.lockKey(ctx, tx, id)
	if err != nil || !k.Signs {
		return r, err
	}
	if err := ring.canDoWithout(id); err != nil {
		return r, err
	}
	r.Since = ring.at
	for _, other := range ring.keys {
		if other.ID != id && other.Signs && other.CreatedAt.Before(r.Since) {
			r.Since = other.CreatedAt
		}
	}
	r.Early = ring.at.Sub(r.Since) < Overlap
	if r.Early && !early {
		return r, &KeyError{fmt.Sprintf("the keys that would stay sign since %s: a device that was away for longer knows "+
			"none of them. "+
			"Retire the key after %s, or with --now", r.Since.Format(time.RFC3339), r.Since.Add(Overlap).Format(time.RFC3339))}
	}
	if _, err := tx.Exec(ctx, `UPDATE log_keys SET seed = NULL WHERE id = $1`, id); err != nil {
		return r, fmt.Errorf("retire a key of log heads: %w", err)
	}
	r.Changed = true
	return r, nil
}

// WithholdKey withholds a key from clients that know no key, because the seed of the key has
// leaked. If the key signs heads, it continues to do so. changed is false if the key was withheld
// before. Errors: ErrNoKey, *KeyError.
func (s *Service) WithholdKey(ctx context.Context, tx pgx.Tx, id int32) (changed bool, err error) {
	ring, k, err := s.lockKey(ctx, tx, id)
	if err != nil || k.Withheld {
		return false, err
	}
	if err := ring.canDoWithout(id); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, `UPDATE log_keys SET withheld = true WHERE id = $1`, id); err != nil {
		return false, fmt.Errorf("withhold a key of log heads: %w", err)
	}
	return true, nil
}

// lockKey is lockKeys, and finds a key among them. Error: ErrNoKey.
func (s *Service) lockKey(ctx context.Context, tx pgx.Tx, id int32) (*keyring, Key, error) {
	ring, err := s.lockKeys(ctx, tx)
	if err != nil {
		return nil, Key{}, fmt.Errorf("read the keys of log heads: %w", err)
	}
	at := slices.IndexFunc(ring.keys, func(k Key) bool { return k.ID == id })
	if at < 0 {
		return nil, Key{}, ErrNoKey
	}
	return ring, ring.keys[at], nil
}

// canDoWithout checks that each node, without the key id, still signs with a key that new clients
// get. Error: *KeyError.
func (r *keyring) canDoWithout(id int32) error {
	var rest bool
	for _, k := range r.keys {
		if k.ID == id || !k.Signs || k.Withheld {
			continue
		}
		if r.at.Sub(k.CreatedAt) >= known {
			return nil
		}
		rest = true
	}
	if rest {
		return &KeyError{fmt.Sprintf("perhaps not every node signs with the other key yet: it is younger than %s. Try "+
			"again then", known)}
	}
	return &KeyError{"no other key signs that new devices are given: add one first"}
}
