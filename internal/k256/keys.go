package k256

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	lru "github.com/hashicorp/golang-lru/v2"
)

// Keys verifies signatures by many keys. It remembers the multiples of the keys that it used
// last. It is safe for concurrent use.
type Keys struct {
	cache *lru.Cache[*atcrypto.PublicKeyK256, *cachedKey]
}

// cachedKey is a key that has verified signatures. Computing the key's multiples costs as much as
// they save in two signatures, so they are computed for the third. A key that signs once or twice
// costs no more than without multiples. Any other key costs at most one computation more.
type cachedKey struct {
	verified atomic.Int32 // signatures verified without multiples
	once     sync.Once
	key      *Key
	err      error
}

// verifiedBefore is how many signatures a key verifies before its multiples are computed.
const verifiedBefore = 2

// NewKeys returns Keys that remembers the multiples of at most this many keys, 7 KiB each.
func NewKeys(most int) (*Keys, error) {
	cache, err := lru.New[*atcrypto.PublicKeyK256, *cachedKey](most)
	if err != nil {
		return nil, fmt.Errorf("k256: %w", err)
	}
	return &Keys{cache}, nil
}

// HashAndVerify does what key.HashAndVerify does. It identifies a key by its address: the caller
// must pass the same pointer again instead of parsing the key for each signature. A signature that
// does not verify is not remembered. So only owners of keys can fill the cache.
func (k *Keys) HashAndVerify(key *atcrypto.PublicKeyK256, content, signature []byte) error {
	cached, ok := k.cache.Get(key)
	if !ok || cached.verified.Load() < verifiedBefore {
		err := key.HashAndVerify(content, signature)
		if err != nil {
			return err
		}
		if !ok {
			cached = &cachedKey{}
			if other, there, _ := k.cache.PeekOrAdd(key, cached); there {
				cached = other
			}
		}
		cached.verified.Add(1)
		return nil
	}
	cached.once.Do(func() { cached.key, cached.err = NewKey(key.Bytes()) })
	if cached.err != nil {
		return fmt.Errorf("multiples of a key: %w", cached.err)
	}
	return cached.key.HashAndVerify(content, signature)
}
