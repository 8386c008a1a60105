package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
)

// H9: a request whose caller's own host does not serve the DID document is charged to the address.
// One that fails because the PLC directory does is not.
func TestFailedLookupsAreCharged(t *testing.T) {
	t.Parallel()
	const burst, requests = 5, 70 // more than the look-ups that one address has at once
	w := newWorld(t, func(w *world) { w.rates.IP = api.Rate{PerSecond: 0.001, Burst: burst} })
	outsider := w.user()
	statuses := func(err error) map[int]int {
		w.directory.Fail(err)
		got := map[int]int{}
		for range requests {
			got[outsider.get(mlsapi.NSIDGetConvos).status]++
		}
		return got
	}
	if got := statuses(errors.New("connection refused")); got[http.StatusServiceUnavailable] != requests {
		t.Errorf("while the directory fails: %v, want 503 only", got)
	}
	if got := statuses(fmt.Errorf("%w: timeout", serviceauth.ErrHost)); got[http.StatusServiceUnavailable] != burst ||
		got[http.StatusTooManyRequests] != requests-burst {
		t.Errorf("while the caller's host fails: %v, want 503 %d times and then 429", got, burst)
	}
}

// H4: tokens of made-up accounts get 429 once the look-ups of their address are spent. Accounts
// that the node knows are served from the same address all the while.
func TestForgerIsLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	forger, known := w.user(), w.user()
	known.get(mlsapi.NSIDGetConvos).ok()
	for n := 0; ; n++ {
		forger.Identity = authtest.NewIdentity(t)
		got := forger.get(mlsapi.NSIDGetConvos)
		if got.status == http.StatusUnauthorized && n < 1000 {
			continue
		}
		got.fails(http.StatusTooManyRequests, "RateLimitExceeded")
		if n < 50 {
			t.Errorf("refused after %d look-ups, want 50", n)
		}
		w.counts(1, "mlsd_lookups_refused_total", "limit", "address")
		w.counts(0, "mlsd_lookups_refused_total", "limit", "node")
		break
	}
	known.get(mlsapi.NSIDGetConvos).ok()
}
