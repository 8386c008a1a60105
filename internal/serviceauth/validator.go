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

	"mlsd/internal/k256"
)

// verifiedTokens is how many verified tokens are remembered, at roughly 0.5 KiB
// each.
const verifiedTokens = 16_384

// knownKeys is of how many K-256 keys multiples are kept, at 7 KiB each.
const knownKeys = 8_192

// Directory finds the #atproto signing key of a DID. Its errors are
// [ErrIssuer] where there certainly is none, [ErrBusy] where its budget is spent,
// and anything else where it could not find out. Each call must end within a few
// seconds of its own accord.
type Directory interface {
	// Resolve returns the key, from a cache if there is one.
	Resolve(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error)
	// Refresh looks the key up afresh. It is for a signature that does not
	// verify, and it must not make the directory forget a good key just because
	// the look-up failed: strangers can cause it.
	Refresh(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error)
}

// ReplayStore remembers the tokens that were used, for all nodes together.
type ReplayStore interface {
	// Use records that a token is used, at least until exp. fresh is true for
	// exactly one of any number of calls, wherever they are made.
	Use(ctx context.Context, id TokenID, exp time.Time) (fresh bool, err error)
}

// Config is what a Validator works with.
type Config struct {
	// Audiences are the accepted values of aud, see [Audiences]. Required: an
	// empty set would accept tokens meant for anyone.
	Audiences []string
	// Directory finds signing keys. Required.
	Directory Directory
	// Replays remembers used tokens. Required.
	Replays ReplayStore
	// Urgent is the method whose tokens' signatures are checked at once. Those of the others wait while as many are being checked as
	// there are processors, so that a crowd that comes at once does not keep it waiting. Default: none is urgent.
	Urgent syntax.NSID
	// Now is the clock for the times in tokens. Default: time.Now.
	Now func() time.Time
}

// Audiences returns the two names under which tokens address the service: its
// DID, which a PDS writes when it proxies, and did#atproto_mls, which clients
// ask of getServiceAuth.
func Audiences(service syntax.DID) []string {
	return []string{service.String(), service.String() + "#atproto_mls"}
}

// Validator checks the service-auth tokens of requests. It is safe for
// concurrent use.
type Validator struct {
	audiences map[string]struct{}
	dir       Directory
	replays   ReplayStore
	now       func() time.Time
	// verified holds the claims of tokens whose signature verified, by the
	// SHA-256 of the whole token. Only tokens of queries are in it: a
	// procedure's comes once.
	verified   *lru.Cache[[sha256.Size]byte, claims]
	refresh    *refreshBudget
	refreshing singleflight.Group // by DID
	keys       *k256.Keys
	urgent     syntax.NSID
	checking   chan struct{} // signatures that are not urgent
}

// New returns a Validator, or an error that names the missing or unusable part
// of cfg.
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
	verified, err := lru.New[[sha256.Size]byte, claims](verifiedTokens)
	if err != nil {
		return nil, fmt.Errorf("serviceauth: %w", err)
	}
	refresh, err := newRefreshBudget()
	if err != nil {
		return nil, fmt.Errorf("serviceauth: %w", err)
	}
	keys, err := k256.NewKeys(knownKeys)
	if err != nil {
		return nil, fmt.Errorf("serviceauth: %w", err)
	}
	v := &Validator{audiences: audiences, dir: cfg.Directory, replays: cfg.Replays, now: cfg.Now, verified: verified, refresh: refresh,
		keys: keys, urgent: cfg.Urgent, checking: make(chan struct{}, runtime.GOMAXPROCS(0))}
	if v.now == nil {
		v.now = time.Now
	}
	return v, nil
}

// Validate checks the token of a request for the method nsid, given its whole
// Authorization header, and returns it verified. Unless once, which is for
// procedures (POST), its claims are remembered: a PDS may re-send a GET. With
// once, the request must have no effect before the token is used up: by
// [Verified.Use], or in the transaction of its effect.
//
// Errors: [ErrMissing], *[InvalidError], [ErrUnavailable], [ErrBusy].
//
// admit, unless nil, is asked about the verified caller; its error is returned as it is.
func (v *Validator) Validate(ctx context.Context, authorization string, nsid syntax.NSID, once bool, admit func(syntax.DID) error) (Verified, error) {
	raw, err := bearer(authorization)
	if err != nil {
		return Verified{}, err
	}
	var (
		sum   [sha256.Size]byte
		c     claims
		known bool
		tok   token
	)
	if !once {
		sum = sha256.Sum256([]byte(raw))
		c, known = v.verified.Get(sum)
	}
	if !known {
		if tok, err = parseToken(raw); err != nil {
			return Verified{}, err
		}
		c = tok.claims
	}
	if err := c.check(v.audiences, nsid, v.now()); err != nil {
		if known {
			v.forgetExpired(sum, &c)
		}
		return Verified{}, err
	}
	if !known {
		if err := v.verify(ctx, &tok); err != nil {
			return Verified{}, err
		}
		if !once {
			v.verified.Add(sum, c)
		}
	}
	if admit != nil {
		if err := admit(c.iss); err != nil {
			return Verified{}, err
		}
	}
	return Verified{Caller: c.iss, lxm: c.lxm, jti: c.jti, expires: c.expires(), replays: v.replays}, nil
}

// forgetExpired drops a token that can never pass again. A wrong method is no
// reason to.
func (v *Validator) forgetExpired(sum [sha256.Size]byte, c *claims) {
	if !v.now().Before(c.expires()) {
		v.verified.Remove(sum)
	}
}
