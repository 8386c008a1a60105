package k256

import (
	"fmt"
	"sync"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	lru "github.com/hashicorp/golang-lru/v2"
)

// Keys verifies signatures by many keys, and keeps the multiples of those that it saw lately. It is safe for concurrent use.
type Keys struct {
	known *lru.Cache[*atcrypto.PublicKeyK256, *known]
}

// known is a key that has verified a signature. Its multiples are worked out for the second: most of those who come once come again,
// and for the others they would double the cost.
type known struct {
	once sync.Once
	key  *Key
	err  error
}

// NewKeys returns Keys that keeps the multiples of so many keys at most, at 7 KiB each.
func NewKeys(most int) (*Keys, error) {
	cache, err := lru.New[*atcrypto.PublicKeyK256, *known](most)
	if err != nil {
		return nil, fmt.Errorf("k256: %w", err)
	}
	return &Keys{cache}, nil
}

// HashAndVerify is key.HashAndVerify. It knows a key by its address: the caller keeps it, and does not parse it for each signature. What does
// not verify leaves no trace, so that only who owns keys can fill the memory.
func (k *Keys) HashAndVerify(key *atcrypto.PublicKeyK256, content, signature []byte) error {
	seen, ok := k.known.Get(key)
	if !ok {
		err := key.HashAndVerify(content, signature)
		if err == nil {
			k.known.ContainsOrAdd(key, &known{})
		}
		return err
	}
	seen.once.Do(func() { seen.key, seen.err = NewKey(key.Bytes()) })
	if seen.err != nil {
		return fmt.Errorf("multiples of a key: %w", seen.err)
	}
	return seen.key.HashAndVerify(content, signature)
}
