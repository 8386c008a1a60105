package outgoing

import (
	"net"
	"net/http"
	"time"

	"mlsd/internal/ssrf"
)

// NewClient returns a client for hosts that others choose. It calls only public addresses, follows
// no redirects, and keeps at most perHost idle connections to a host. If allowLoopback is true, it
// also calls this machine. pings can be nil.
func NewClient(allowLoopback bool, perHost int, pings *http.HTTP2Config) *http.Client {
	dialer := &net.Dialer{Timeout: 3 * time.Second, Control: ssrf.Control(allowLoopback)}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			TLSHandshakeTimeout:    3 * time.Second,
			ForceAttemptHTTP2:      true,
			MaxResponseHeaderBytes: 16 << 10,
			DisableCompression:     true,
			MaxIdleConns:           64,
			MaxIdleConnsPerHost:    perHost,
			IdleConnTimeout:        30 * time.Second,
			HTTP2:                  pings,
		},
	}
}
