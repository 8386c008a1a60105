package testbed

import (
	"io"
	"net/http"
	"strings"
)

// FastTransport keeps its connections open.
func FastTransport() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
}

// Unrepeated is a transport that sends each request once. http.Transport repeats a query whose
// connection breaks. The first can have had an effect, such as the lease of a Welcome, which its
// sender would not know of.
type Unrepeated struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (t Unrepeated) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil || req.Body == http.NoBody {
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(strings.NewReader("")) // it has no GetBody, so it cannot be sent again
	}
	return t.Transport.RoundTrip(req)
}
