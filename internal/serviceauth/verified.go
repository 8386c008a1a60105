package serviceauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Verified is a token that was verified. Only such a token can be used up, so that
// no one can use up another's token.
type Verified struct {
	Caller syntax.DID // its issuer
	// Key is the key that verified it.
	Key     atcrypto.PublicKey
	lxm     string
	jti     string
	expires time.Time
	replays ReplayStore
}

// TokenID is one token among all.
type TokenID [16]byte

// ID returns the first half of the SHA-256 of the token's iss, lxm and jti. With
// the lxm, requests for a method wait for none of another's. Callers choose the
// length and the content of a jti; two tokens of one ID only their own caller
// can have made.
func (t *Verified) ID() TokenID {
	buf := make([]byte, 0, 128)
	for _, part := range []string{t.Caller.String(), t.lxm} {
		buf = append(append(buf, part...), 0)
	}
	buf = append(buf, t.jti...)
	sum := sha256.Sum256(buf)
	return TokenID(sum[:])
}

// Expires is when the token is refused for its age, and need not be remembered
// any more.
func (t *Verified) Expires() time.Time { return t.expires }

// Use uses the token up: every later request with it is refused, on every node.
// Errors: [ErrReplayed] if the token was used before, [ErrLate], and [ErrUnavailable]
// if the store of used tokens failed. Then the token may be used up.
func (t *Verified) Use(ctx context.Context) error {
	err := t.replays.Use(ctx, t.ID(), t.expires)
	if err != nil && !errors.Is(err, ErrReplayed) && !errors.Is(err, ErrLate) {
		return fmt.Errorf("%w: recording its use: %w", ErrUnavailable, err)
	}
	return err
}
