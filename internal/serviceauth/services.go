package serviceauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"
)

// ProfileNSID is the collection of the record in which a person names its delivery service. The
// record's key is "self" (lexicons/blue/catbird/mls/profile.json).
const ProfileNSID = "blue.catbird.mls.profile"

// ErrNoService means that the DID certainly names no delivery service: the DID does not exist, or
// its document has no #atproto_mls with an address that this server connects to.
var ErrNoService = errors.New("the DID is not that of a delivery service")

// Service is a delivery service, as its DID document describes it.
type Service struct {
	DID      syntax.DID
	Endpoint string // the URL of its XRPC methods, without a slash at the end
	// Domain is the registered domain of the endpoint's host, which names the service.
	Domain string
	// Keys has the keys that sign receipts of claims, by the fragment of the key's id: #mls_service_1.
	Keys map[string]atcrypto.PublicKey
}

// servicesKept bounds the remembered services. It also bounds the people whose service is
// remembered. Services that only unauthenticated callers name count too.
const servicesKept = 16_384

// serviceKey begins the ids of the keys that sign receipts.
const serviceKey = "#mls_service"

// Services finds delivery services, and the service of a person. It remembers what it finds for an
// hour. It remembers for two minutes that it has found nothing. A look-up that fails never makes an
// old answer true. Unauthenticated callers choose the hosts, so look-ups have the limits of those
// for did:web accounts. [CachedDirectory.Services] makes a Services.
type Services struct {
	r        *resolver
	services *found[Service]
	homes    *found[syntax.DID]
}

// How old a remembered answer may be for a use of it.
const (
	// Now is for what destroys: the answer is of a look-up of this call.
	Now time.Duration = 0
	// Recent is for what admits somebody, and for a key that is not known. So each service and each
	// person is looked up for this at most once a minute.
	Recent = time.Minute
	// Remembered is for everything else.
	Remembered = keyFresh
)

func newServices(r *resolver, now func() time.Time) *Services {
	return &Services{r: r, services: newFound[Service](now), homes: newFound[syntax.DID](now)}
}

// Service returns the service with the DID, by an answer that is not older than age. Errors:
// ErrNoService, ErrBusy, and any other error if the document could not be fetched.
func (s *Services) Service(ctx context.Context, did syntax.DID, age time.Duration) (Service, error) {
	return s.services.get(ctx, did, age, func(ctx context.Context) (Service, error) { return s.r.service(ctx, did) })
}

// Home returns the delivery service of a person, which a record on the person's PDS names, by an
// answer that is not older than age. It returns "" if the person does not exist or has no such
// record. Errors: ErrBusy, and any other error if the DID document or the record could not be
// fetched.
func (s *Services) Home(ctx context.Context, did syntax.DID, age time.Duration) (syntax.DID, error) {
	home, err := s.homes.get(ctx, did, age, func(ctx context.Context) (syntax.DID, error) { return s.r.home(ctx, did) })
	if errors.Is(err, ErrIssuer) {
		return "", nil
	}
	return home, err
}

// Forget drops what this node remembers of the person's service, because the person's record has
// changed.
func (s *Services) Forget(did syntax.DID) {
	s.homes.forget(did)
	s.services.forget(did)
}

// service fetches a service's DID document.
func (r *resolver) service(ctx context.Context, did syntax.DID) (Service, error) {
	doc, err := r.parsed(ctx, did)
	if err != nil {
		if errors.Is(err, ErrIssuer) {
			err = fmt.Errorf("%w: %w", ErrNoService, err)
		}
		return Service{}, err
	}
	ident := identity.ParseIdentity(&doc)
	s := Service{DID: did, Endpoint: ident.GetServiceEndpoint("atproto_mls"), Keys: map[string]atcrypto.PublicKey{}}
	if s.Endpoint, s.Domain, err = r.host(s.Endpoint); err != nil {
		return Service{}, fmt.Errorf("%w: #atproto_mls: %w", ErrNoService, err)
	}
	if err := r.names(ctx, s); err != nil {
		return Service{}, err
	}
	for id := range ident.Keys {
		if key, err := ident.GetPublicKey(id); err == nil && strings.HasPrefix("#"+id, serviceKey) {
			s.Keys["#"+id] = key
		}
	}
	return s, nil
}

// names returns an error unless the host of a service names the service: the maker of a DID document
// can put anybody's address into it. The document of a did:web is on its host.
func (r *resolver) names(ctx context.Context, s Service) error {
	own := s.Endpoint + "/.well-known/did.json"
	if l, err := r.webLookup(s.DID.Identifier()); s.DID.Method() == "web" && err == nil && strings.EqualFold(l.url, own) {
		return nil
	}
	body, err := r.web.get(ctx, lookup{url: own, domain: s.Domain})
	var doc struct {
		ID syntax.DID `json:"id"`
	}
	switch {
	case errors.Is(err, ErrIssuer), err == nil && (json.Unmarshal(body, &doc) != nil || doc.ID != s.DID):
		return fmt.Errorf("%w: %s does not name it", ErrNoService, own)
	}
	return err
}

// home fetches the record in which a person names its service. The error is ErrIssuer if there is
// no such record.
func (r *resolver) home(ctx context.Context, did syntax.DID) (syntax.DID, error) {
	doc, err := r.parsed(ctx, did)
	if err != nil {
		return "", err
	}
	ident := identity.ParseIdentity(&doc)
	pds, domain, err := r.host(ident.PDSEndpoint())
	if err != nil {
		return "", fmt.Errorf("%w: #atproto_pds: %w", ErrIssuer, err)
	}
	query := url.Values{"repo": {did.String()}, "collection": {ProfileNSID}, "rkey": {"self"}}
	body, err := r.web.get(ctx, lookup{url: pds + "/xrpc/com.atproto.repo.getRecord?" + query.Encode(), domain: domain})
	if status, ok := errors.AsType[statusError](err); ok && status == http.StatusBadRequest { // RecordNotFound
		return "", fmt.Errorf("%w: %w", ErrIssuer, err)
	}
	if err != nil {
		return "", err
	}
	var record struct {
		Value struct {
			DeliveryService string `json:"deliveryService"`
		} `json:"value"`
	}
	if err := json.Unmarshal(body, &record); err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrIssuer, ProfileNSID, err)
	}
	home, ok := parseIssuer(record.Value.DeliveryService)
	if !ok {
		return "", fmt.Errorf("%w: %s: deliveryService is not a DID of a service", ErrIssuer, ProfileNSID)
	}
	return home, nil
}

// parsed fetches the DID document of did. It is for everything in the document except the signing
// key.
func (r *resolver) parsed(ctx context.Context, did syntax.DID) (doc identity.DIDDocument, err error) {
	body, err := r.document(ctx, did, false)
	if err != nil {
		return doc, err
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return doc, fmt.Errorf("%w: reading DID document: %w", ErrIssuer, err)
	}
	if doc.DID != did {
		return doc, fmt.Errorf("%w: DID document is of another DID", ErrIssuer)
	}
	return doc, nil
}

// host returns the origin of an endpoint in a DID document, and the domain whose limit counts the
// look-ups. An endpoint is https with a host name and nothing else. On this machine it can also be
// http and have a port, if that is allowed.
func (r *resolver) host(endpoint string) (origin, domain string, err error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || checkOrigin(u) != nil:
		return "", "", errors.New("want https and a host")
	case r.allowLoopback && loopbackHost(u.Hostname()) && (u.Scheme == "http" || u.Scheme == "https"):
		return u.Scheme + "://" + u.Host, u.Host, nil
	}
	host, err := syntax.ParseHandle(u.Host)
	if err != nil || u.Scheme != "https" || !host.AllowedTLD() {
		return "", "", errors.New("want https and a public host without a port")
	}
	return "https://" + strings.ToLower(u.Host), registrable(u.Host), nil
}

// found remembers the outcomes of look-ups by DID. Simultaneous calls for one DID share a look-up,
// except those that need the answer of their own.
type found[T any] struct {
	now    func() time.Time
	flight singleflight.Group

	mu  sync.Mutex // guards the rest
	all *simplelru.LRU[syntax.DID, outcome[T]]
}

// outcome is what is known of a DID: the last answer, and the last failure since.
type outcome[T any] struct {
	value    T
	err      error     // nil, ErrIssuer or ErrNoService: what the answer says
	at       time.Time // of the answer; zero: there is none
	failure  error     // of a look-up after the answer
	failedAt time.Time
}

func newFound[T any](now func() time.Time) *found[T] {
	return &found[T]{now: now, all: newLRU[syntax.DID, outcome[T]](servicesKept)}
}

// get returns an answer that is not older than age, by a look-up if none is remembered.
func (f *found[T]) get(ctx context.Context, did syntax.DID, age time.Duration,
	fetch func(context.Context) (T, error)) (T, error) {
	f.mu.Lock()
	known, _ := f.all.Get(did)
	f.mu.Unlock()
	if known.err != nil {
		age = min(age, noKeyFor)
	}
	switch now := f.now(); {
	case age > 0 && now.Sub(known.at) < age:
		return known.value, known.err
	case age > 0 && now.Sub(known.failedAt) < failedFor:
		return *new(T), known.failure
	case age == 0:
		return f.look(ctx, did, fetch)
	}
	return shareFetch(ctx, &f.flight, did.String(), func(ctx context.Context) (T, error) {
		return f.look(ctx, did, fetch)
	})
}

// look looks a DID up. A failure leaves the answer that is known, for uses that may be as old.
func (f *found[T]) look(ctx context.Context, did syntax.DID, fetch func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*lookupTimeout)
	defer cancel()
	begun := f.now() // the answer is as old as its question
	value, err := fetch(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	known, _ := f.all.Peek(did)
	switch {
	case err == nil, errors.Is(err, ErrIssuer), errors.Is(err, ErrNoService):
		if !known.at.After(begun) {
			f.all.Add(did, outcome[T]{value: value, err: err, at: begun})
		}
	case !errors.Is(err, ErrBusy): // a host was asked
		known.failure, known.failedAt = err, begun
		f.all.Add(did, known)
	}
	return value, err
}

// forget drops what is known of a DID.
func (f *found[T]) forget(did syntax.DID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all.Remove(did)
}
