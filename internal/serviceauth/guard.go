package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/bluesky-social/indigo/util/ssrf"
	"golang.org/x/time/rate"
)

const (
	// maxDocument bounds a DID document, in bytes. Real ones have 1 or 2 KiB.
	maxDocument = 64 << 10
	// maxResponseHeader bounds the header of a response, in bytes.
	maxResponseHeader = 16 << 10
	// connectTimeout bounds connecting and the TLS handshake, each. What bounds a
	// look-up as a whole is lookupTimeout.
	connectTimeout = 3 * time.Second
)

// errForbidden is a did:web host at an address where this server will not go.
var errForbidden = errors.New("address is not public")

// lookups is a budget of look-ups of DIDs that are not in the cache.
type lookups struct {
	perSecond rate.Limit
	burst     int // at once, before perSecond holds
	inFlight  int
}

// source fetches DID documents within a budget.
type source struct {
	client  *http.Client
	limiter *rate.Limiter
	slots   chan struct{}
}

func newSource(client *http.Client, l lookups) *source {
	return &source{client: client, limiter: rate.NewLimiter(l.perSecond, l.burst), slots: make(chan struct{}, l.inFlight)}
}

// get returns the body at url. It returns ErrBusy where the budget is spent and
// no slot comes free while ctx lasts.
func (s *source) get(ctx context.Context, url string) ([]byte, error) {
	if !s.limiter.Allow() {
		return nil, ErrBusy
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ErrBusy
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssuer, err)
	}
	req.Header.Set("User-Agent", "mlsd")
	resp, err := s.client.Do(req)
	var dnsErr *net.DNSError
	switch {
	case errors.Is(err, errForbidden), errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		return nil, fmt.Errorf("%w: %w", ErrIssuer, err)
	case err != nil:
		return nil, err
	}
	// Closing before the end closes the connection: an endless body is not
	// drained.
	defer resp.Body.Close()
	return read(resp)
}

// plainClient asks the PLC directory, a host of the operator's choice.
func plainClient() *http.Client {
	return newClient(&net.Dialer{Timeout: connectTimeout})
}

// guardedClient asks hosts of a stranger's choice: public addresses on port 443
// only. The address is checked when the socket connects, after DNS, so that a
// name that changes its answer gains nothing.
func guardedClient(allowLoopback bool, dns *net.Resolver) *http.Client {
	return newClient(&net.Dialer{Timeout: connectTimeout, Resolver: dns, Control: func(network, address string, _ syscall.RawConn) error {
		if !mayDial(network, address, allowLoopback) {
			return fmt.Errorf("%w: %s", errForbidden, address)
		}
		return nil
	}})
}

// newClient follows no redirect, uses no proxy, and unpacks nothing: a small
// compressed body could be a large one.
func newClient(dialer *net.Dialer) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       lookupTimeout,
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            dialer.DialContext,
			TLSHandshakeTimeout:    connectTimeout,
			ResponseHeaderTimeout:  lookupTimeout,
			MaxResponseHeaderBytes: maxResponseHeader,
			DisableCompression:     true,
			MaxIdleConns:           64,
			MaxIdleConnsPerHost:    16,
			IdleConnTimeout:        30 * time.Second,
		},
	}
}

// mayDial reports whether a stranger may have this server connect to address,
// an IP address and port.
func mayDial(network, address string, allowLoopback bool) bool {
	if network != "tcp4" && network != "tcp6" {
		return false
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil || ap.Addr().Zone() != "" {
		return false
	}
	ip := ap.Addr().Unmap()
	if allowLoopback && ip.IsLoopback() {
		return true
	}
	return ap.Port() == 443 && ssrf.IsPublicIPAddress(ip.AsSlice()) && !isTransition(ip)
}

// isTransition reports addresses that util/ssrf takes for public IPv6, but that
// stand for an IPv4 address or for none (IANA special-purpose registry).
func isTransition(ip netip.Addr) bool {
	for _, p := range [...]netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01}), 23),             // protocol assignments, Teredo
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8}), 32), // documentation
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x02}), 16),             // 6to4
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0x3f, 0xff}), 20),             // documentation
	} {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}
