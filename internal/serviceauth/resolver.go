package serviceauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

// DirectoryConfig says where DID documents are found.
type DirectoryConfig struct {
	// PLCURL is the PLC directory: scheme, host and port, nothing else. It is
	// the operator's choice and may be a private host, but must be https unless
	// it is on loopback. Default: https://plc.directory.
	PLCURL string
	// AllowLoopback lets did:web documents be fetched from this machine, on any
	// port, and accepts did:web:localhost%3APORT over http. For development
	// only: with it, callers choose which local ports get a request.
	AllowLoopback bool
	// Now is the clock of the cache. Default: time.Now.
	Now func() time.Time

	// resolver is the DNS in tests.
	resolver *net.Resolver
}

// NewDirectory returns a Directory that looks DID documents up in the PLC
// directory (did:plc) and at /.well-known/did.json of a host (did:web), and
// remembers keys for an hour. The host of a did:web is a stranger's choice, so it
// is asked with the care of [guardedClient].
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
	// did:web has its own budget: its hosts are strangers, who may answer as
	// slowly as they like, and that must not keep did:plc callers waiting.
	r := &resolver{
		plcURL:        plc.Scheme + "://" + plc.Host,
		plc:           newSource(plainClient(), lookups{perSecond: 100, burst: 1000, inFlight: 32}),
		web:           newSource(guardedClient(cfg.AllowLoopback, cfg.resolver), lookups{perSecond: 20, burst: 200, inFlight: 32}),
		allowLoopback: cfg.AllowLoopback,
	}
	return newKeyCache(cfg.Now, r.key)
}

// checkPLCURL refuses a URL that would be unsafe or misread. Keys fetched over
// plain http would be whatever somebody on the way says they are.
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

// resolver fetches and reads DID documents.
type resolver struct {
	plcURL        string
	plc, web      *source
	allowLoopback bool
}

// document is what matters of a DID document (https://atproto.com/specs/did).
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

// parseDocument returns the #atproto key in the DID document of did, which must
// name did as its subject and as the key's controller.
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

// webURL is where the document of did:web:id is. AT Protocol allows a bare
// hostname, and localhost with a port for development.
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

// read returns the body of resp, or why there is none.
func read(resp *http.Response) ([]byte, error) {
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone: // a PLC tombstone is 410
		return nil, fmt.Errorf("%w: status %d", ErrIssuer, resp.StatusCode)
	default: // redirects among them
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("reading DID document: %w", err)
	}
	if len(body) > maxDocument {
		return nil, fmt.Errorf("%w: DID document exceeds %d bytes", ErrIssuer, maxDocument)
	}
	return body, nil
}
