package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"mlsd/internal/k256"
)

// The algorithms of AT Protocol (https://atproto.com/specs/cryptography).
const (
	algES256  = "ES256"  // ECDSA on P-256 with SHA-256
	algES256K = "ES256K" // ECDSA on secp256k1 (K-256) with SHA-256
)

const (
	// refreshEvery is the least time between two refreshes of one DID's key on
	// account of bad signatures: how long a caller who just rotated its key may
	// have to wait if a stranger keeps forging its name.
	refreshEvery = time.Minute
	// refreshRate and refreshBurst bound the refreshes of all DIDs together, per
	// second and at once.
	refreshRate, refreshBurst = 10, 100
	// refreshMemory is how many DIDs' last refresh is remembered.
	refreshMemory = 16_384
)

// verify checks the signature against the key of iss. If it does not verify, or
// alg is of another curve, the caller may have rotated its key: then it is tried
// again with a newer key, if there is one.
func (v *Validator) verify(ctx context.Context, tok *token) error {
	key, err := v.dir.Resolve(ctx, tok.claims.iss)
	if err != nil {
		return lookupError(err)
	}
	failure := v.signed(ctx, tok, key)
	if failure == nil || errors.Is(failure, ErrUnavailable) {
		return failure
	}
	newer, err := v.newerKey(ctx, tok.claims.iss)
	switch {
	case errors.Is(err, ErrIssuer):
		return lookupError(err)
	case err != nil || newer.Equal(key):
		// Where the look-up failed, the signature is still wrong by the key that
		// is known: no reason to say that the server is at fault.
		return failure
	}
	return v.signed(ctx, tok, newer)
}

// signed checks the signature, in its turn unless the token's method is urgent.
func (v *Validator) signed(ctx context.Context, tok *token, key atcrypto.PublicKey) error {
	if tok.claims.lxm == v.urgent.String() {
		return tok.verify(v.keys, key)
	}
	select {
	case v.checking <- struct{}{}:
		defer func() { <-v.checking }()
		return tok.verify(v.keys, key)
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
}

// newerKey refreshes the key of did, if the budget allows it. Calls at the same
// time share one refresh, so that of many requests just after a rotation none
// is refused because another is being served; later ones find the new key in
// the directory.
func (v *Validator) newerKey(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	detached := context.WithoutCancel(ctx) // the others must not fail because the first went away
	result := v.refreshing.DoChan(did.String(), func() (any, error) {
		if !v.refresh.allow(did, v.now()) {
			return v.dir.Resolve(detached, did)
		}
		return v.dir.Refresh(detached, did)
	})
	select {
	case r := <-result:
		key, _ := r.Val.(atcrypto.PublicKey)
		return key, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// verify checks alg and signature against key. The signature must be low-S, as
// AT Protocol asks: the other form would be a second token with the same claims.
func (t *token) verify(keys *k256.Keys, key atcrypto.PublicKey) error {
	var (
		alg    string
		verify = key.HashAndVerify
	)
	switch key := key.(type) {
	case *atcrypto.PublicKeyP256:
		alg = algES256
	case *atcrypto.PublicKeyK256:
		alg = algES256K
		verify = func(content, signature []byte) error { return keys.HashAndVerify(key, content, signature) }
	}
	if alg == "" || t.alg != alg {
		return invalid(reasonKey)
	}
	if err := verify([]byte(t.signed), t.signature); err != nil {
		return &InvalidError{Reason: reasonSignature, Err: err}
	}
	return nil
}

// lookupError turns an error of the directory into one of Validate.
func lookupError(err error) error {
	switch {
	case errors.Is(err, ErrIssuer):
		return &InvalidError{Reason: reasonIssuer, Err: err}
	case errors.Is(err, ErrBusy), errors.Is(err, ErrUnavailable):
		return err
	}
	return fmt.Errorf("%w: looking up its issuer: %w", ErrUnavailable, err)
}

// refreshBudget keeps bad signatures from becoming look-ups. Without it N forged
// tokens cost N look-ups at the PLC directory, or at a host of the forger's
// choice.
type refreshBudget struct {
	last *lru.Cache[syntax.DID, time.Time] // time of a DID's last refresh
	all  *rate.Limiter
}

func newRefreshBudget() (*refreshBudget, error) {
	last, err := lru.New[syntax.DID, time.Time](refreshMemory)
	if err != nil {
		return nil, err
	}
	return &refreshBudget{last: last, all: rate.NewLimiter(refreshRate, refreshBurst)}, nil
}

// allow reports whether did's key may be refreshed at now, and books it. It is
// not called twice at once for one DID.
func (b *refreshBudget) allow(did syntax.DID, now time.Time) bool {
	if last, ok := b.last.Get(did); ok && now.Sub(last) < refreshEvery {
		return false
	}
	if !b.all.AllowN(now, 1) {
		return false
	}
	b.last.Add(did, now)
	return true
}
