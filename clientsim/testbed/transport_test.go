package testbed

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// A query whose connection breaks is not sent again, and the next query has no body.
func TestRequestsAreNotRepeated(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got.Add(1) == 2 { // on a connection that was used before
			panic(http.ErrAbortHandler)
		}
		if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
			t.Errorf("a query has a body: %d bytes, %v", r.ContentLength, r.TransferEncoding)
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: Unrepeated{FastTransport()}}
	for n, fails := range []bool{false, true, false} {
		resp, err := client.Get(server.URL)
		if (err != nil) != fails {
			t.Errorf("query %d: %v", n+1, err)
		}
		if err == nil && resp.Body.Close() != nil {
			t.Error("the answer cannot be closed")
		}
	}
	if n := got.Load(); n != 3 {
		t.Errorf("%d requests came for 3 queries", n)
	}
}
