// Package serviceauth checks the service-auth tokens with which AT Protocol clients call this
// server, directly or through their PDS.
//
// A token is a JWT signed with the caller's own #atproto key
// (https://atproto.com/specs/xrpc#inter-service-authentication-jwt). Its iss is the caller. No
// other claim names a caller: service auth has no sub.
//
// The order of the checks bounds what an unauthenticated caller's token costs:
//
//	size and form ─▶ claims ─▶ verified before? ─▶ key of iss ─▶ alg, signature ─▶ jti
//	   no memory     no I/O      no signature      one look-up    one refresh       one row
//	                                               per DID        per DID and min   (procedures)
//
// An expired token, or a token for another service or method, costs no look-up. A look-up that
// leads to no verified caller is charged to the address of the request (limits.go), so a forger
// uses up only its own limit. After a bad signature the key is looked up again, because the caller
// may have rotated its key. The jti is used up last, so that only the owner of a token can use it
// up.
//
// A token goes from [Validator.Validate] (validator.go) through the parser (token.go) to
// [VerifiedToken], and is used up by Use or by the transaction of its effect (usedtokens.go). A key
// comes from the DID document (directory.go, fetch.go) or from another node (sharedkeys.go) into
// memory (cache.go).
package serviceauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"mlsd/internal/clock"
	"mlsd/internal/k256"
	"mlsd/internal/limit"
)

const (
	// verifiedTokens is how many verified tokens are remembered, about 0.5 KiB each.
	verifiedTokens = 16_384
	// keysWithMultiples bounds the K-256 keys whose multiples are remembered, 7 KiB each.
	keysWithMultiples = 8_192
)

const (
	// refreshedDIDs bounds the DIDs whose last refresh is remembered.
	refreshedDIDs = 16_384
)

var (
	// refreshOfDID limits refreshes of one DID's key after bad signatures. While others forge a
	// caller's tokens, the caller waits at most a minute after it has rotated its key.
	refreshOfDID = limit.Rate{PerSecond: 1.0 / 60, Burst: 1}
	// refreshesOfAddress limits the refreshes that one address causes without a verified caller, for
	// all accounts together.
	refreshesOfAddress = limit.Rate{PerSecond: 1, Burst: 10}
	// refreshesOfKnown is for all accounts that have verified before, and refreshesOfOthers for all
	// others. So unknown accounts cannot use up the refreshes of known accounts that replace their
	// keys.
	refreshesOfKnown  = limit.Rate{PerSecond: 50, Burst: 500}
	refreshesOfOthers = limit.Rate{PerSecond: 10, Burst: 100}
)

// Directory finds the #atproto signing key of a DID. Its error is [ErrIssuer] if the DID certainly
// has no key, [ErrBusy] if the limit of look-ups is reached, and any other error if the directory
// could not find out. Each call must end by itself within a few seconds.
type Directory interface {
	// Known returns what is known of a DID without a look-up, from memory only.
	Known(did syntax.DID) Known
	// Resolve returns the key, from a cache if there is one.
	Resolve(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error)
	// Refresh looks the key up again after a bad signature. Anybody can cause a bad signature. So if
	// the look-up fails, the directory must keep the key that it has.
	Refresh(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error)
	// Verified says that a token of the DID has verified with key.
	Verified(did syntax.DID, key atcrypto.PublicKey)
}

// Known is what a [Directory] knows of a DID. If Key and Err are nil, Resolve looks the DID up.
type Known struct {
	Key      atcrypto.PublicKey // may be used now
	Err      error              // the error of a recent look-up; Resolve returns it
	Verified bool               // a token of the DID has verified before
	Stale    bool               // the key is older than an hour, and cannot be looked up now
}

// ReplayStore remembers the tokens that were used, for all nodes together.
type ReplayStore interface {
	// Use records that a token is used, at least until exp. It succeeds for exactly one of any number
	// of calls with the same token, on any node. Errors: ErrReplayed, ErrLate, errors of the store.
	Use(ctx context.Context, id TokenID, exp time.Time) error
}

// Config is what a Validator works with.
type Config struct {
	// Audiences are the accepted values of aud, see [Audiences]. Required: an empty set would
	// accept tokens meant for anyone.
	Audiences []string
	// Directory finds signing keys. Required.
	Directory Directory
	// Replays remembers used tokens. Required.
	Replays ReplayStore
	// Urgent is a method. The signatures of its tokens are checked at once. For all other methods
	// together, at most one signature for every two processors is checked at a time. Default: none.
	Urgent syntax.NSID
	// Now is the clock for the times in tokens. Default: time.Now.
	Now func() time.Time
	// Clock knows whether Now agrees with the database's clock. If it does not, a token whose times
	// are wrong gets ErrClock. Default: they agree.
	Clock *clock.Offset
}

// Audiences returns the two names under which tokens address the service. A PDS that proxies writes
// the service's DID. Clients ask getServiceAuth for did#atproto_mls.
func Audiences(service syntax.DID) []string {
	return []string{service.String(), service.String() + "#atproto_mls"}
}

// Validator checks the service-auth tokens of requests. It is safe for concurrent use.
type Validator struct {
	audiences map[string]struct{}
	dir       Directory
	replays   ReplayStore
	now       func() time.Time
	clock     *clock.Offset
	// verified holds tokens of queries by their SHA-256. A procedure's token comes only once.
	verified   *lru.Cache[[sha256.Size]byte, rememberedToken]
	addresses  *addressLimits
	refreshed  *limit.Buckets[string]
	refreshing singleflight.Group // by DID
	keys       *k256.Keys
	urgent     syntax.NSID
	checking   chan struct{} // one element for each signature being checked, except urgent ones
}

// New returns a Validator, or an error that names the missing or unusable part of cfg.
func New(cfg Config) (*Validator, error) {
	switch {
	case len(cfg.Audiences) == 0:
		return nil, errors.New("serviceauth: no audiences")
	case cfg.Directory == nil:
		return nil, errors.New("serviceauth: no directory")
	case cfg.Replays == nil:
		return nil, errors.New("serviceauth: no replay store")
	}
	audiences := make(map[string]struct{}, len(cfg.Audiences))
	for _, a := range cfg.Audiences {
		did, fragment, hasFragment := strings.Cut(a, "#")
		if _, err := syntax.ParseDID(did); err != nil || hasFragment && fragment == "" {
			return nil, fmt.Errorf("serviceauth: audience %q is not a DID or DID#service", a)
		}
		audiences[a] = struct{}{}
	}
	verified, err := lru.New[[sha256.Size]byte, rememberedToken](verifiedTokens)
	if err != nil {
		return nil, fmt.Errorf("serviceauth: %w", err)
	}
	keys, err := k256.NewKeys(keysWithMultiples)
	if err != nil {
		return nil, fmt.Errorf("serviceauth: %w", err)
	}
	v := &Validator{
		audiences: audiences, dir: cfg.Directory, replays: cfg.Replays, now: cfg.Now, clock: cfg.Clock,
		verified: verified, keys: keys,
		urgent: cfg.Urgent, checking: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
	if v.now == nil {
		v.now = time.Now
	}
	v.addresses = newAddressLimits(v.now)
	v.refreshed = limit.NewBuckets[string](refreshedDIDs, v.now)
	return v, nil
}

// rememberedToken is a token whose signature verified with key.
type rememberedToken struct {
	claims
	key atcrypto.PublicKey
}

// Validate checks the token of a request for the method nsid and returns it verified. authorization
// is the whole Authorization header.
//
// from is the client's address or network, which is charged for look-ups that lead to no verified
// caller.
//
// once is true for procedures (POST): the request must have no effect before the token is used up,
// by [VerifiedToken.Use] or in the transaction of its effect. Without once, the claims are remembered,
// because a PDS may repeat a GET.
//
// admit, unless nil, is called with the verified caller. Validate returns its error unchanged.
//
// Errors: [ErrMissing], *[InvalidError], [ErrUnavailable] (with [ErrHost] or without), [ErrBusy]
// ([ErrSpent] or another).
func (v *Validator) Validate(
	ctx context.Context, from, authorization string, nsid syntax.NSID, once bool, admit func(syntax.DID) error,
) (VerifiedToken, error) {
	raw, err := bearer(authorization)
	if err != nil {
		return VerifiedToken{}, err
	}
	var (
		sum   [sha256.Size]byte
		c     claims
		key   atcrypto.PublicKey
		known bool
		tok   token
	)
	if !once {
		sum = sha256.Sum256([]byte(raw))
		c, key, known = v.remembered(sum)
	}
	if !known {
		if tok, err = parseToken(raw); err != nil {
			return VerifiedToken{}, err
		}
		c = tok.claims
	}
	if err := c.check(v.audiences, nsid, v.now()); err != nil {
		if known {
			v.forgetExpired(sum, &c)
		}
		if wrong := new(InvalidError); errors.As(err, &wrong) && wrong.timing() && v.clock.Fault() != "" {
			return VerifiedToken{}, ErrClock
		}
		return VerifiedToken{}, err
	}
	if !known {
		if key, err = v.checkSignature(ctx, from, &tok); err != nil {
			return VerifiedToken{}, err
		}
		if !once {
			v.verified.Add(sum, rememberedToken{claims: c, key: key})
		}
	}
	if admit != nil {
		if err := admit(c.iss); err != nil {
			return VerifiedToken{}, err
		}
	}
	return VerifiedToken{Caller: c.iss, Key: key, Stale: v.dir.Known(c.iss).Stale, lxm: c.lxm, jti: c.jti,
		expires: c.expires(), replays: v.replays}, nil
}

// remembered returns the claims and the key of a token that verified before, if the issuer still
// has this key.
func (v *Validator) remembered(sum [sha256.Size]byte) (claims, atcrypto.PublicKey, bool) {
	t, ok := v.verified.Get(sum)
	if !ok {
		return claims{}, nil, false
	}
	key := v.dir.Known(t.iss).Key
	return t.claims, key, key != nil && key.Equal(t.key)
}

// forgetExpired drops a remembered token that has expired, because it can never pass again. It
// keeps a token that was refused for another reason, such as a wrong method.
func (v *Validator) forgetExpired(sum [sha256.Size]byte, c *claims) {
	if !v.now().Before(c.expires()) {
		v.verified.Remove(sum)
	}
}

// checkSignature checks the signature with the key of iss, and returns the key. A look-up counts
// against the limit of the address, unless the account has verified before: such accounts are few,
// and are looked up once an hour.
func (v *Validator) checkSignature(ctx context.Context, from string, tok *token) (atcrypto.PublicKey, error) {
	charge := &lookupCharge{limits: v.addresses, did: tok.claims.iss, from: from}
	var key atcrypto.PublicKey
	var err error
	if known := v.dir.Known(tok.claims.iss); known.Key == nil && known.Err == nil && !known.Verified {
		err = charge.admit(ctx)
	}
	if err == nil {
		key, err = v.verifyWithKeyOfIssuer(ctx, charge, tok)
	}
	charge.end(err == nil || ctx.Err() == nil && notTheCallersFault(err))
	if err != nil {
		return nil, lookupError(tok.claims.iss, err)
	}
	v.dir.Verified(tok.claims.iss, key)
	return key, nil
}

// verifyWithKeyOfIssuer verifies the signature and returns the key. If the signature or its curve
// is wrong, it tries once more with a newer key, because the caller may have rotated its key.
func (v *Validator) verifyWithKeyOfIssuer(ctx context.Context, charge *lookupCharge, tok *token) (atcrypto.PublicKey,
	error) {
	key, err := v.dir.Resolve(ctx, tok.claims.iss)
	if err != nil {
		return nil, err
	}
	failure := v.verify(ctx, tok, key)
	if failure == nil || errors.Is(failure, ErrUnavailable) {
		return key, failure
	}
	// If a limit prevents the look-up, the signature may still be right.
	if err := charge.admit(ctx); err != nil {
		return nil, err
	}
	newer, err := v.newerKey(ctx, tok.claims.iss, charge.from)
	switch {
	case errors.Is(err, ErrIssuer), errors.Is(err, ErrBusy):
		return nil, err
	case err != nil || newer.Equal(key):
		// The signature is wrong by the known key, even if the look-up failed: the fault is not ours.
		return nil, failure
	}
	if err = v.verify(ctx, tok, newer); err == nil {
		v.refreshed.Give("address "+charge.from, refreshesOfAddress, 1)
	}
	return newer, err
}

// lookupCharge is the one look-up that a request is charged for.
type lookupCharge struct {
	limits *addressLimits
	did    syntax.DID
	from   string
	done   func(giveBack bool)
}

// admit waits until the request may cause a look-up.
func (c *lookupCharge) admit(ctx context.Context) (err error) {
	if c.done == nil {
		c.done, err = c.limits.admit(ctx, c.did, c.from)
	}
	return err
}

// end ends the request's look-up. If giveBack is true, it returns the look-up to the limit.
func (c *lookupCharge) end(giveBack bool) {
	if c.done != nil {
		c.done(giveBack)
	}
}

// notTheCallersFault reports whether our limits, the PLC directory or the database prevented the
// check of a token.
func notTheCallersFault(err error) bool {
	return !errors.Is(err, ErrIssuer) && !errors.Is(err, ErrHost) && !errors.Is(err, ErrRefresh) &&
		!errors.As(err, new(*InvalidError))
}

// verify verifies the signature with key. If the method is not urgent, it first waits for its turn.
func (v *Validator) verify(ctx context.Context, tok *token, key atcrypto.PublicKey) error {
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

// newerKey refreshes the key of did, if the limit allows it. Simultaneous calls share one refresh,
// so that no request fails because of another request's refresh.
func (v *Validator) newerKey(ctx context.Context, did syntax.DID, from string) (atcrypto.PublicKey, error) {
	return shareFetch(ctx, &v.refreshing, did.String(), func(ctx context.Context) (atcrypto.PublicKey, error) {
		switch err := v.mayRefresh(did, from); {
		case errors.Is(err, ErrOften): // the key was refreshed in the last minute
			return v.dir.Resolve(ctx, did)
		case err != nil:
			return nil, err
		}
		return v.dir.Refresh(ctx, did)
	})
}

// lookupError turns an error of the directory into an error of Validate. It returns other errors
// unchanged.
func lookupError(did syntax.DID, err error) error {
	switch {
	case errors.As(err, new(*InvalidError)), errors.Is(err, ErrBusy), errors.Is(err, ErrUnavailable):
		return err
	case errors.Is(err, ErrIssuer):
		return &InvalidError{Reason: reasonIssuer, Err: err, Detail: "the DID document of " + did.String() +
			" must exist, be public, and have a key #atproto"}
	}
	return fmt.Errorf("%w: looking up its issuer: %w", ErrUnavailable, err)
}

// mayRefresh counts a refresh for an address. Without this limit, N forged tokens would cost N
// look-ups at a host that the forger chooses. The error is ErrOften if the key was refreshed in the
// last minute, or ErrRefresh.
func (v *Validator) mayRefresh(did syntax.DID, from string) error {
	all := share{"others", refreshesOfOthers, ErrRefresh}
	if v.dir.Known(did).Verified {
		all = share{"known", refreshesOfKnown, ErrRefresh}
	}
	return takeAll(v.refreshed, share{did.String(), refreshOfDID, ErrOften},
		share{"address " + from, refreshesOfAddress, ErrRefresh}, all)
}
