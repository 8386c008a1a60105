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

// VerifiedToken is a token that was verified. Only such a token can be used up, so nobody can use up
// another caller's token.
type VerifiedToken struct {
	Caller syntax.DID // its issuer
	// Key is the key that verified it.
	Key atcrypto.PublicKey
	// Stale says that the key cannot be looked up now. Its owner can have replaced it since: nothing
	// that the token asks for may destroy or admit anything.
	Stale   bool
	lxm     string
	jti     string
	expires time.Time
	replays ReplayStore
}

// TokenID is one token among all.
type TokenID [16]byte

// ID returns the first half of the SHA-256 of the token's iss, lxm and jti. The lxm is in it so that
// requests for one method never wait for those of another. Callers choose the length and the content
// of a jti. Only one caller can make two tokens with the same ID.
func (t *VerifiedToken) ID() TokenID {
	buf := make([]byte, 0, 128)
	for _, part := range []string{t.Caller.String(), t.lxm} {
		buf = append(append(buf, part...), 0)
	}
	buf = append(buf, t.jti...)
	sum := sha256.Sum256(buf)
	return TokenID(sum[:])
}

// Expires is the time from which the token is refused for its age. Its use need not be remembered
// any longer.
func (t *VerifiedToken) Expires() time.Time { return t.expires }

// Use uses the token up: every node refuses every later request with it.
// Errors: [ErrReplayed] if the token was used before, [ErrLate], and [ErrUnavailable]
// if the store of used tokens failed. Then the token may be used up.
func (t *VerifiedToken) Use(ctx context.Context) error {
	err := t.replays.Use(ctx, t.ID(), t.expires)
	if err != nil && !errors.Is(err, ErrReplayed) && !errors.Is(err, ErrLate) {
		return fmt.Errorf("%w: recording its use: %w", ErrUnavailable, err)
	}
	return err
}
