package serviceauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

const (
	// cachedKeys and cachedFailures are how many keys and failures are remembered.
	cachedKeys, cachedFailures = 65_536, 16_384
	// keyFresh is how long a key is used without a new look-up. For as long, a key that its owner
	// replaced can still sign. The new key is found at once, by a refresh.
	keyFresh = time.Hour
	// keyStale is how long a key is used while its DID document cannot be fetched.
	keyStale = 24 * time.Hour
	// noKeyFor is how long a DID without a usable key is refused without a look-up.
	noKeyFor = 2 * time.Minute
	// failedFor is how long a DID is refused without a look-up after a look-up that failed.
	failedFor = 5 * time.Second
	// lookupTimeout is the longest time of one look-up, waiting included. A request makes at most
	// two (resolve, refresh), and a PDS gives up after 10 s.
	lookupTimeout = 4 * time.Second
)

// DirectoryConfig says where DID documents are.
type DirectoryConfig struct {
	// PLCURL is the PLC directory: scheme, host and port, nothing else. The operator chooses it,
	// and it may be a private host. It must be https unless it is on loopback. Default:
	// https://plc.directory.
	PLCURL string
	// AllowLoopback allows did:web documents on this machine, on any port, and accepts
	// did:web:localhost%3APORT over http. It is for development only: callers then choose which
	// local ports get a request.
	AllowLoopback bool
	// Now is the clock of the cache. Default: time.Now.
	Now func() time.Time

	// resolver is the DNS in tests.
	resolver *net.Resolver
}

// NewDirectory returns a Directory that fetches DID documents from the PLC directory (did:plc) and
// from /.well-known/did.json of a host (did:web). It remembers keys for an hour. A stranger chooses
// the host of a did:web, so [publicClient] asks it.
func NewDirectory(cfg DirectoryConfig) (Directory, error) {
	if cfg.PLCURL == "" {
		cfg.PLCURL = identity.DefaultPLCURL
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	plc, err := url.Parse(cfg.PLCURL)
	if err != nil {
		return nil, fmt.Errorf("serviceauth: PLC URL: %w", err)
	}
	if err := checkPLCURL(plc); err != nil {
		return nil, fmt.Errorf("serviceauth: PLC URL %q: %w", cfg.PLCURL, err)
	}
	// did:web has limits of its own. Its hosts belong to strangers and may answer slowly. That must
	// not delay callers with a did:plc.
	r := &resolver{
		plcURL:        plc.Scheme + "://" + plc.Host,
		plc:           newSource(plainClient(), lookups{perSecond: 100, burst: 1000, inFlight: 32}),
		web:           newSource(publicClient(cfg.AllowLoopback, cfg.resolver), lookups{perSecond: 20, burst: 200, inFlight: 32}),
		allowLoopback: cfg.AllowLoopback,
	}
	return newKeyCache(cfg.Now, r.key)
}

// checkPLCURL refuses a URL that is unsafe or ambiguous. Over plain http, anyone between the two
// hosts could replace the keys.
func checkPLCURL(u *url.URL) error {
	if u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("want scheme, host and port only")
	}
	ip := net.ParseIP(u.Hostname())
	switch loopback := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); {
	case u.Scheme == "https", u.Scheme == "http" && loopback:
		return nil
	}
	return errors.New("want https, or http on loopback")
}

// keyCache is a Directory that remembers what fetch returns. indigo's CacheDirectory does not do,
// for three reasons. First, a request that goes away fails the look-up that it started, and the
// failure is cached for everyone: any stranger could lock out any caller. Second, failures and keys
// share one LRU, so that made-up DIDs push out real ones. Third, a purged key is gone even if the
// next look-up fails.
type keyCache struct {
	fetch    func(context.Context, syntax.DID) (atcrypto.PublicKey, error)
	now      func() time.Time
	keys     *lru.Cache[syntax.DID, cachedKey]
	failures *lru.Cache[syntax.DID, cachedFailure]
	flight   singleflight.Group // by DID
}

type cachedKey struct {
	key     atcrypto.PublicKey
	fetched time.Time
}

type cachedFailure struct {
	err   error
	until time.Time
}

func newKeyCache(now func() time.Time, fetch func(context.Context, syntax.DID) (atcrypto.PublicKey, error)) (*keyCache, error) {
	keys, err := lru.New[syntax.DID, cachedKey](cachedKeys)
	if err != nil {
		return nil, fmt.Errorf("serviceauth: %w", err)
	}
	failures, err := lru.New[syntax.DID, cachedFailure](cachedFailures)
	if err != nil {
		return nil, fmt.Errorf("serviceauth: %w", err)
	}
	return &keyCache{fetch: fetch, now: now, keys: keys, failures: failures}, nil
}

// Resolve implements [Directory].
func (c *keyCache) Resolve(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	known, ok := c.keys.Get(did)
	if ok && c.now().Sub(known.fetched) < keyFresh {
		return known.key, nil
	}
	err := c.recentFailure(did)
	if err == nil {
		var key atcrypto.PublicKey
		if key, err = c.lookup(ctx, did); err == nil {
			return key, nil
		}
	}
	if ok && !errors.Is(err, ErrIssuer) && c.now().Sub(known.fetched) < keyStale {
		return known.key, nil
	}
	return nil, err
}

// Refresh implements [Directory].
func (c *keyCache) Refresh(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	return c.lookup(ctx, did)
}

// recentFailure returns the error of the last look-up of did, if it still applies.
func (c *keyCache) recentFailure(did syntax.DID) error {
	f, ok := c.failures.Get(did)
	if !ok || !c.now().Before(f.until) {
		return nil
	}
	return f.err
}

// lookup fetches the key of did and remembers the outcome. Simultaneous calls share one fetch. The
// fetch continues if a caller goes away.
func (c *keyCache) lookup(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	return shareFetch(ctx, &c.flight, did, func(ctx context.Context) (atcrypto.PublicKey, error) {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		key, err := c.fetch(ctx, did)
		c.remember(did, key, err)
		return key, err
	})
}

// shareFetch returns the result of fetch. Simultaneous calls for one DID share one fetch. A call
// returns when its ctx ends; the fetch continues for the others.
func shareFetch(
	ctx context.Context, flight *singleflight.Group, did syntax.DID,
	fetch func(context.Context) (atcrypto.PublicKey, error),
) (atcrypto.PublicKey, error) {
	detached := context.WithoutCancel(ctx)
	result := flight.DoChan(did.String(), func() (any, error) { return fetch(detached) })
	select {
	case r := <-result:
		key, _ := r.Val.(atcrypto.PublicKey)
		return key, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// remember stores the outcome of a fetch. Only a new key or [ErrIssuer] replaces a remembered key.
func (c *keyCache) remember(did syntax.DID, key atcrypto.PublicKey, err error) {
	switch {
	case err == nil:
		c.keys.Add(did, cachedKey{key: key, fetched: c.now()})
		c.failures.Remove(did)
	case errors.Is(err, ErrIssuer):
		c.keys.Remove(did)
		c.failures.Add(did, cachedFailure{err: err, until: c.now().Add(noKeyFor)})
	case errors.Is(err, ErrBusy):
		// No source was asked.
	default:
		c.failures.Add(did, cachedFailure{err: err, until: c.now().Add(failedFor)})
	}
}

// resolver fetches DID documents and reads their keys.
type resolver struct {
	plcURL        string
	plc, web      *source
	allowLoopback bool
}

// document is the part of a DID document that is read (https://atproto.com/specs/did).
type document struct {
	ID                 syntax.DID                       `json:"id"`
	VerificationMethod []identity.DocVerificationMethod `json:"verificationMethod"`
}

// key fetches the #atproto key of did. It returns ErrIssuer where the document
// was found and is of no use, or does not exist.
func (r *resolver) key(ctx context.Context, did syntax.DID) (atcrypto.PublicKey, error) {
	var body []byte
	var err error
	switch did.Method() {
	case "plc":
		body, err = r.plc.get(ctx, r.plcURL+"/"+did.String())
	case "web":
		var u string
		if u, err = r.webURL(did.Identifier()); err == nil {
			body, err = r.web.get(ctx, u)
		}
	default:
		err = fmt.Errorf("%w: DID method %q", ErrIssuer, did.Method())
	}
	if err != nil {
		return nil, err
	}
	return parseDocument(body, did)
}

// parseDocument returns the #atproto key in the DID document of did. The document must name did as
// its subject and as the key's controller.
func parseDocument(body []byte, did syntax.DID) (atcrypto.PublicKey, error) {
	var doc document
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("%w: reading DID document: %w", ErrIssuer, err)
	}
	if doc.ID != did {
		return nil, fmt.Errorf("%w: DID document is of another DID", ErrIssuer)
	}
	ident := identity.ParseIdentity(&identity.DIDDocument{DID: doc.ID, VerificationMethod: doc.VerificationMethod})
	key, err := ident.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssuer, err)
	}
	return key, nil
}

// webURL returns the URL of the document of did:web:id. AT Protocol allows a bare hostname, and
// localhost with a port for development.
func (r *resolver) webURL(id string) (string, error) {
	if port, ok := strings.CutPrefix(id, "localhost%3A"); ok && r.allowLoopback {
		return "http://localhost:" + port + "/.well-known/did.json", nil
	}
	host, err := syntax.ParseHandle(id)
	if err != nil || !host.AllowedTLD() {
		return "", fmt.Errorf("%w: did:web host is not allowed", ErrIssuer)
	}
	return "https://" + id + "/.well-known/did.json", nil
}
