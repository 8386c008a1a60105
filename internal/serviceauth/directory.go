package serviceauth

import (
	"cmp"
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
	"golang.org/x/net/publicsuffix"

	"mlsd/internal/pgpool"
	"mlsd/internal/tracing"
)

// DirectoryConfig says where DID documents are.
type DirectoryConfig struct {
	// PLCURL is the PLC directory: only scheme, host and port. The operator chooses it, and it may
	// be a private host. It must be https unless it is on loopback. "" means https://plc.directory.
	PLCURL string
	// AllowLoopback allows did:web documents on this machine, on any port, and accepts
	// did:web:localhost%3APORT over http. It is for development only: callers then choose which
	// local ports get a request.
	AllowLoopback bool
	// DB shares keys between nodes and across restarts, in the table identity_keys. If it is nil,
	// keys are only in memory, and Forget affects only this node.
	DB pgpool.DB
	// Now is the clock of the cache. nil means time.Now.
	Now func() time.Time
	// OnLookup is called after each look-up of a key in a DID document. It must not block. It can be
	// nil.
	OnLookup func(Lookup)

	// resolver replaces the DNS in tests.
	resolver *net.Resolver
}

// NewDirectory returns a directory that fetches DID documents from the PLC directory (did:plc) and
// from /.well-known/did.json of a host (did:web). It remembers keys for an hour. An unauthenticated
// caller chooses the host of a did:web, so [publicClient] makes these requests.
func NewDirectory(cfg DirectoryConfig) (*CachedDirectory, error) {
	cfg.PLCURL = cmp.Or(cfg.PLCURL, identity.DefaultPLCURL)
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
	// did:web has its own limits. Unauthenticated callers name its hosts, which may answer slowly.
	// Such hosts must not delay callers with a did:plc.
	r := &resolver{
		plcURL:        plc.Scheme + "://" + plc.Host,
		plc:           newSource(plainClient(), plcLookups()),
		web:           newSource(publicClient(cfg.AllowLoopback, cfg.resolver), webLookups()),
		allowLoopback: cfg.AllowLoopback,
	}
	fetch := r.key
	if cfg.OnLookup != nil {
		fetch = observed(r.key, cfg.OnLookup)
	}
	c := newCachedDirectory(cfg.Now, fetch, cfg.DB)
	// Whoever looks for services must not use up the look-ups of tokens.
	c.services = newServices(&resolver{
		plcURL:        r.plcURL,
		plc:           newSource(plainClient(), plcLookupsOfServices()),
		web:           newSource(publicClient(cfg.AllowLoopback, cfg.resolver), webLookupsOfServices()),
		allowLoopback: r.allowLoopback,
	}, cfg.Now)
	return c, nil
}

// Lookup is a look-up of a key in a DID document that has ended.
type Lookup struct {
	Source  LookupSource
	Outcome LookupOutcome
	Took    time.Duration
	Err     error // nil if the outcome is LookupFound
}

// LookupSource is the kind of server that has the document.
type LookupSource string

// The sources of DID documents.
const (
	LookupPLC LookupSource = "plc" // the PLC directory
	LookupWeb LookupSource = "web" // the host of a did:web
)

// LookupOutcome is how a look-up of a DID document ended.
type LookupOutcome string

// The outcomes of look-ups.
const (
	LookupFound   LookupOutcome = "found"   // the document has a key
	LookupInvalid LookupOutcome = "invalid" // the document does not exist or has no usable key
	LookupBusy    LookupOutcome = "busy"    // a limit was reached, and no request was made
	LookupFailed  LookupOutcome = "failed"  // the source failed
)

// LookupSources returns all sources.
func LookupSources() []LookupSource { return []LookupSource{LookupPLC, LookupWeb} }

// LookupOutcomes returns all outcomes.
func LookupOutcomes() []LookupOutcome {
	return []LookupOutcome{LookupFound, LookupInvalid, LookupBusy, LookupFailed}
}

// observed returns fetch with a report and a trace of each look-up.
func observed(fetch fetchKey, report func(Lookup)) fetchKey {
	return func(ctx context.Context, did syntax.DID, known bool) (atcrypto.PublicKey, error) {
		begun := time.Now()
		ctx, span := tracing.StartCall(ctx, "look-up")
		defer span.End()
		key, err := fetch(ctx, did, known)
		l := Lookup{Source: LookupWeb, Outcome: LookupFailed, Took: time.Since(begun), Err: err}
		if did.Method() == "plc" {
			l.Source = LookupPLC
		}
		switch {
		case err == nil:
			l.Outcome = LookupFound
		case errors.Is(err, ErrIssuer):
			l.Outcome = LookupInvalid
		case errors.Is(err, ErrBusy):
			l.Outcome = LookupBusy
		}
		if err != nil {
			span.Failed(string(l.Outcome))
		}
		report(l)
		return key, err
	}
}

// checkPLCURL refuses a URL that is unsafe or ambiguous. Over plain http, anyone between the two
// hosts could replace the keys.
func checkPLCURL(u *url.URL) error {
	if err := checkOrigin(u); err != nil {
		return err
	}
	if u.Scheme == "https" || u.Scheme == "http" && loopbackHost(u.Hostname()) {
		return nil
	}
	return errors.New("want https, or http on loopback")
}

// checkOrigin refuses a URL with more than a scheme, a host and a port.
func checkOrigin(u *url.URL) error {
	if u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("want scheme, host and port only")
	}
	return nil
}

// loopbackHost reports whether a host of a URL is this machine.
func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// resolver fetches DID documents and reads their keys.
type resolver struct {
	plcURL        string
	plc, web      *source
	allowLoopback bool
}

// document is the part of a DID document that this package reads (https://atproto.com/specs/did).
type document struct {
	ID                 syntax.DID                       `json:"id"`
	VerificationMethod []identity.DocVerificationMethod `json:"verificationMethod"`
}

// key fetches the #atproto key of did. known says that a token of did has verified before. The
// error is ErrIssuer if the document does not exist or has no usable key; ErrHost if the host of a
// did:web failed; ErrBusy if a limit is reached.
func (r *resolver) key(ctx context.Context, did syntax.DID, known bool) (atcrypto.PublicKey, error) {
	body, err := r.document(ctx, did, known)
	if err != nil {
		return nil, err
	}
	return parseDocument(body, did)
}

// document fetches the DID document of did. It returns the errors of key.
func (r *resolver) document(ctx context.Context, did syntax.DID, known bool) (body []byte, err error) {
	switch did.Method() {
	case "plc":
		body, err = r.plc.get(ctx, lookup{url: r.plcURL + "/" + did.String(), known: known})
	case "web":
		var l lookup
		if l, err = r.webLookup(did.Identifier()); err == nil {
			l.known = known
			body, err = r.web.get(ctx, l)
		}
		if err != nil && !errors.Is(err, ErrIssuer) && !errors.Is(err, ErrBusy) {
			err = fmt.Errorf("%w: %w", ErrHost, err)
		}
	default:
		err = fmt.Errorf("%w: DID method %q", ErrIssuer, did.Method())
	}
	return body, err
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

// webLookup returns the look-up of the document of did:web:id. AT Protocol allows a bare hostname.
// For development, it also allows localhost with a port.
func (r *resolver) webLookup(id string) (lookup, error) {
	if port, ok := strings.CutPrefix(id, "localhost%3A"); ok && r.allowLoopback {
		return lookup{url: "http://localhost:" + port + "/.well-known/did.json", domain: "localhost:" + port}, nil
	}
	host, err := syntax.ParseHandle(id)
	if err != nil || !host.AllowedTLD() {
		return lookup{}, fmt.Errorf("%w: did:web host is not allowed", ErrIssuer)
	}
	return lookup{url: "https://" + id + "/.well-known/did.json", domain: registrable(id)}, nil
}

// registrable returns the registered domain of host. The owner of this domain can have any number
// of hosts in it.
func registrable(host string) string {
	host = strings.ToLower(host)
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil { // host is itself a public suffix
		return host
	}
	return domain
}
