package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"mlsd/internal/ssrf"
)

const (
	// maxDocument is the most bytes of a DID document. Real ones have 1 or 2 KiB.
	maxDocument = 64 << 10
	// maxResponseHeader is the most bytes of a response's header.
	maxResponseHeader = 16 << 10
	// connectTimeout is the longest time to connect, and the longest time of the TLS handshake.
	// lookupTimeout applies to the whole look-up.
	connectTimeout = 3 * time.Second
)

// lookups are the limits of look-ups of DIDs that are not in the cache.
type lookups struct {
	perSecond rate.Limit
	burst     int // at once, before perSecond applies
	inFlight  int
}

// source fetches DID documents within limits.
type source struct {
	client  *http.Client
	limiter *rate.Limiter
	slots   chan struct{}
}

func newSource(client *http.Client, l lookups) *source {
	return &source{client: client, limiter: rate.NewLimiter(l.perSecond, l.burst), slots: make(chan struct{}, l.inFlight)}
}

// get returns the body at url. It returns ErrBusy if the rate limit is reached, or if no slot
// becomes free before ctx ends.
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
	case errors.Is(err, ssrf.ErrForbidden), errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		return nil, fmt.Errorf("%w: %w", ErrIssuer, err)
	case err != nil:
		return nil, err
	}
	// Closing before the end closes the connection. So an endless body is not read to its end.
	defer resp.Body.Close()
	return read(resp)
}

// plainClient returns a client for the PLC directory, a host that the operator chooses.
func plainClient() *http.Client {
	return newClient(&net.Dialer{Timeout: connectTimeout})
}

// publicClient returns a client for hosts that a stranger chooses. Its dialer connects to public
// addresses only.
func publicClient(allowLoopback bool, dns *net.Resolver) *http.Client {
	return newClient(&net.Dialer{Timeout: connectTimeout, Resolver: dns, Control: ssrf.Control(allowLoopback)})
}

// newClient returns a client that follows no redirect, uses no proxy, and decompresses nothing: a
// small compressed body can become a large one.
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

// read returns the body of resp. The error is [ErrIssuer] if the DID has no document.
func read(resp *http.Response) ([]byte, error) {
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone: // a PLC tombstone is 410
		return nil, fmt.Errorf("%w: status %d", ErrIssuer, resp.StatusCode)
	default: // redirects too
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
