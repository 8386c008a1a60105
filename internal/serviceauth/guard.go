package serviceauth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"mlsd/internal/guard"
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
	case errors.Is(err, guard.ErrForbidden), errors.As(err, &dnsErr) && dnsErr.IsNotFound:
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

// guardedClient asks hosts of a stranger's choice: see [guard.Control].
func guardedClient(allowLoopback bool, dns *net.Resolver) *http.Client {
	return newClient(&net.Dialer{Timeout: connectTimeout, Resolver: dns, Control: guard.Control(allowLoopback)})
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
