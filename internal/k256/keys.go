package k256

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	lru "github.com/hashicorp/golang-lru/v2"
)

// Keys verifies signatures by many keys, and keeps the multiples of those that it saw lately. It is safe for concurrent use.
type Keys struct {
	known *lru.Cache[*atcrypto.PublicKeyK256, *known]
}

// known is a key that has verified signatures. Its multiples cost what they save in two, so that they are worked out for the third:
// whoever comes once or twice costs no more than without, and whoever comes often twice that at most.
type known struct {
	verified atomic.Int32 // without multiples
	once     sync.Once
	key      *Key
	err      error
}

// enough is how many signatures a key verifies without multiples.
const enough = 2

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
	if !ok || seen.verified.Load() < enough {
		err := key.HashAndVerify(content, signature)
		if err != nil {
			return err
		}
		if !ok {
			seen = &known{}
			if other, there, _ := k.known.PeekOrAdd(key, seen); there {
				seen = other
			}
		}
		seen.verified.Add(1)
		return nil
	}
	seen.once.Do(func() { seen.key, seen.err = NewKey(key.Bytes()) })
	if seen.err != nil {
		return fmt.Errorf("multiples of a key: %w", seen.err)
	}
	return seen.key.HashAndVerify(content, signature)
}
