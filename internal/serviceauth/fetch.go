package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"mlsd/internal/limit"
	"mlsd/internal/ssrf"
)

const (
	// maxDocument is the largest DID document, in bytes. Real documents have 1 or 2 KiB.
	maxDocument = 64 << 10
	// maxResponseHeader is the largest header of a response, in bytes.
	maxResponseHeader = 16 << 10
	// connectTimeout bounds the time to connect, and then the TLS handshake.
	connectTimeout = 2 * time.Second
	// slotWait bounds the wait for a slot, requestTimeout the whole request. Their sum is less than
	// lookupTimeout.
	slotWait, requestTimeout = 1200 * time.Millisecond, 2500 * time.Millisecond
	// slowAnswer is the duration of a request from which on its host counts as slow. Most hosts
	// answer in a few hundred milliseconds, including DNS and TLS.
	slowAnswer = time.Second
	// failuresOfOutage is how many consecutive failed requests mean that the PLC directory is down.
	failuresOfOutage = 8
)

var errDown = errors.New("the PLC directory fails")

// lookups are the limits of look-ups of DIDs that are not in the cache.
type lookups struct {
	known    limit.Rate // for accounts with a verified token
	unknown  limit.Rate // for other accounts
	inFlight int64
	// unverified is how many of the inFlight look-ups can be for accounts without a verified token,
	// and for hosts that answered slowly.
	unverified int64
	// ofDomain is how many of the inFlight look-ups can be for did:web accounts of one registered
	// domain. domain is the rate for the domain's known accounts. Its other accounts, which anybody
	// can make up, have a second rate of this size. Zero means that there are no domains.
	ofDomain int64
	domain   limit.Rate
}

// domainsKept is how many registered domains are remembered, with up to three buckets each.
const domainsKept = 16_384

// slowOfDomain is how many slow answers a registered domain may give. After that, the domain gets
// only the slots that unverified accounts share.
var slowOfDomain = limit.Rate{PerSecond: 1.0 / 60, Burst: 1}

// plcLookups are the limits for the PLC directory.
func plcLookups() lookups {
	all := limit.Rate{PerSecond: 100, Burst: 1000}
	return lookups{known: all, unknown: all, inFlight: 32, unverified: 24}
}

// webLookups are the limits for the hosts of did:web accounts.
func webLookups() lookups {
	return lookups{
		// Ten domains use up the rate of known accounts. If eight domains that were not slow in the
		// last minute become tarpits, they hold all slots that are not for unverified accounts.
		known: limit.Rate{PerSecond: 100, Burst: 1000}, unknown: limit.Rate{PerSecond: 20, Burst: 200},
		inFlight: 64, unverified: 32,
		// Higher than the rate of one address, so that a forger does not use up the rate of
		// somebody else's domain.
		ofDomain: 4, domain: limit.Rate{PerSecond: 2 * lookupsOfAddress.PerSecond, Burst: 2 * lookupsOfAddress.Burst},
	}
}

// plcLookupsOfServices and webLookupsOfServices are the limits of look-ups of services and homes,
// apart from those of tokens. Package api bounds what of them one caller or address can use.
func plcLookupsOfServices() lookups {
	l := plcLookups()
	l.unknown, l.unverified = limit.Rate{PerSecond: 50, Burst: 1000}, l.inFlight
	return l
}

func webLookupsOfServices() lookups {
	l := webLookups()
	l.unknown, l.unverified = limit.Rate{PerSecond: 100, Burst: 2000}, l.inFlight
	return l
}

// lookup is one request for a DID document.
type lookup struct {
	url    string
	domain string // registered domain of a did:web's host; "" means the PLC directory
	known  bool   // a token of the account has verified before
}

// source fetches DID documents within limits.
//
// Anybody can name any number of accounts, and answer slowly for their own accounts. So accounts
// that verified before have their own rate. They also have slots that no other account takes while
// their hosts answer quickly. The accounts of one registered domain share a rate and a few slots,
// because the domain's owner can make any number of accounts and slow answers.
type source struct {
	client  *http.Client
	limits  lookups
	buckets *limit.Buckets[string]
	// The slots, by registered domain.
	domains, unverified, slots *limit.Queue
	failed                     atomic.Int32          // consecutive failed requests
	cause                      atomic.Pointer[error] // of the last failed request
}

func newSource(client *http.Client, l lookups) *source {
	return &source{
		client:     client,
		limits:     l,
		buckets:    limit.NewBuckets[string](3*domainsKept, time.Now),
		domains:    &limit.Queue{Share: l.ofDomain},
		unverified: &limit.Queue{Size: l.unverified},
		slots:      &limit.Queue{Size: l.inFlight},
	}
}

// get returns the body at l.url. The error is ErrBusy if a rate limit is reached or no slot becomes
// free in time.
func (s *source) get(ctx context.Context, l lookup) ([]byte, error) {
	waiting, cancel := context.WithTimeout(ctx, slotWait)
	defer cancel()
	release, err := s.admit(waiting, l)
	if err != nil {
		return nil, err
	}
	defer release()
	// The wait for a slot does not reduce this time, so if it runs out, the host is at fault.
	ctx, cancel = context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	begun := time.Now()
	body, err := s.request(ctx, l)
	if l.domain != "" && time.Since(begun) >= slowAnswer {
		s.buckets.Charge(slowAnswers+l.domain, slowOfDomain, 1)
	}
	if err == nil || !outage(err) {
		s.failed.Store(0)
	} else {
		s.cause.Store(&err)
		s.failed.Add(1)
	}
	return body, err
}

// down reports whether the whole source fails. Only the PLC directory can fail as a whole, because
// each host of a did:web fails for its own reasons.
func (s *source) down() bool { return s.domains.Share == 0 && s.failed.Load() >= failuresOfOutage }

// busy returns the error of a look-up without a slot. If the source is down, its slow requests hold
// the slots, and known keys stay in use.
func (s *source) busy() error {
	if s.down() {
		return fmt.Errorf("%w: %w", errDown, *s.cause.Load())
	}
	return ErrBusy
}

// slowAnswers is the prefix of the keys of buckets of slow answers.
const slowAnswers = "slow "

// admit waits for the slots that l needs. It takes the slot that all look-ups need last, so that no
// look-up holds this slot while it waits.
func (s *source) admit(ctx context.Context, l lookup) (release func(), err error) {
	who, rate, needed := "unknown ", s.limits.unknown, []*limit.Queue{s.domains, s.unverified, s.slots}
	if l.known {
		who, rate = "known ", s.limits.known
		if s.buckets.Level(slowAnswers+l.domain, slowOfDomain).Left >= 1 {
			needed = []*limit.Queue{s.domains, s.slots}
		}
	}
	shares := []share{{who, rate, s.busy()}}
	if l.domain != "" {
		shares = []share{{who + l.domain, s.limits.domain, ErrBusy}, shares[0]}
	}
	if err := takeAll(s.buckets, shares...); err != nil {
		return nil, err
	}
	for n, slots := range needed {
		if slots.Acquire(ctx, l.domain, 1) != nil {
			needed = needed[:n]
			err = s.busy()
			break
		}
	}
	release = func() {
		for _, slots := range needed {
			slots.Release(l.domain, 1)
		}
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// request returns the body at l.url. If the DNS has no name for the host of a did:web, the DID does
// not exist. If it has none for the PLC directory, the directory fails, and known keys stay in use.
func (s *source) request(ctx context.Context, l lookup) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssuer, err)
	}
	req.Header.Set("User-Agent", "mlsd")
	resp, err := s.client.Do(req)
	var dnsErr *net.DNSError
	switch {
	case errors.Is(err, ssrf.ErrForbidden), l.domain != "" && errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		return nil, fmt.Errorf("%w: %w", ErrIssuer, err)
	case err != nil:
		return nil, err
	}
	// Closing the body before its end closes the connection. So an endless body is not read to its
	// end.
	defer resp.Body.Close()
	return read(resp)
}

// plainClient returns a client for the PLC directory, a host that the operator chooses.
func plainClient() *http.Client {
	return newClient(&net.Dialer{Timeout: connectTimeout})
}

// publicClient returns a client for hosts that anybody chooses. It connects only to public
// addresses.
func publicClient(allowLoopback bool, dns *net.Resolver) *http.Client {
	return newClient(&net.Dialer{Timeout: connectTimeout, Resolver: dns, Control: ssrf.Control(allowLoopback)})
}

// newClient returns a client that follows no redirect and uses no proxy. It decompresses nothing,
// because a small compressed body can become a large one.
func newClient(dialer *net.Dialer) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       requestTimeout,
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            dialer.DialContext,
			TLSHandshakeTimeout:    connectTimeout,
			ResponseHeaderTimeout:  requestTimeout,
			MaxResponseHeaderBytes: maxResponseHeader,
			DisableCompression:     true,
			MaxIdleConns:           64,
			MaxIdleConnsPerHost:    16,
			IdleConnTimeout:        30 * time.Second,
		},
	}
}

// statusError is an answer with a status other than 200.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("status %d", int(s)) }

// read returns the body of resp. The error is [ErrIssuer] if the DID has no document.
func read(resp *http.Response) ([]byte, error) {
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone: // a PLC tombstone is 410
		return nil, fmt.Errorf("%w: status %d", ErrIssuer, resp.StatusCode)
	case http.StatusTooManyRequests:
		// We asked too often. This must not count as an outage, because then anybody who causes
		// look-ups could keep old keys in use.
		return nil, fmt.Errorf("%w: status %d", ErrBusy, resp.StatusCode)
	default: // redirects too
		return nil, statusError(resp.StatusCode)
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
