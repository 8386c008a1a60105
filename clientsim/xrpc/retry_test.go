package xrpc_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/clientsim/xrpc"
	"mlsd/clientsim/xrpc/xrpctest"
)

func TestRetryRule(t *testing.T) {
	t.Parallel()
	busy := xrpctest.Say(409, `{"error":"RequestInProgress","message":"wait"}`, "Retry-After", "0")
	tests := map[string]struct {
		first func(int, http.ResponseWriter)
		again bool
		name  string
	}{
		"in progress":  {busy, true, ""},
		"quota":        {xrpctest.Say(429, `{"error":"QuotaExceeded"}`, "Retry-After", "0"), false, "QuotaExceeded"},
		"rate limited": {xrpctest.Say(429, `{"error":"RateLimitExceeded"}`, "Retry-After", "0"), true, ""},
		"unavailable":  {xrpctest.Say(503, `{"error":"ServiceUnavailable"}`), true, ""},
		"bad gateway":  {xrpctest.Say(502, `not json`), true, ""},
		"another epoch": {xrpctest.Say(409, `{"error":"EpochMismatch","message":"epoch 6 is stale; currentEpoch=7"}`), false,
			"EpochMismatch"},
		"conflict":       {xrpctest.Say(409, `{"error":"IdempotencyConflict"}`), false, "IdempotencyConflict"},
		"unknown method": {xrpctest.Say(501, `{"error":"MethodNotImplemented"}`), false, "MethodNotImplemented"},
		"bad token":      {xrpctest.Say(401, `{"error":"InvalidToken"}`), false, "InvalidToken"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, server := xrpctest.Serve(t, func(n int, w http.ResponseWriter) {
				if n == 0 {
					tt.first(n, w)
					return
				}
				xrpctest.Say(200, "{}")(n, w)
			})
			client := xrpc.NewClient(server.URL, "did:web:test", server.Client().Transport, &xrpc.Stats{})
			_, err := client.Do(t.Context(), xrpctest.Account(t, 0), xrpctest.Call())
			if got := xrpc.ErrorName(err); got != tt.name {
				t.Errorf("error %q, want %q (%v)", got, tt.name, err)
			}
			want := []string{string(xrpctest.Call().Body)}
			if tt.again {
				want = append(want, want[0])
			}
			arrived, fresh := fake.Seen()
			if diff := cmp.Diff(want, arrived); diff != "" {
				t.Errorf("arrived (-want +got):\n%s", diff)
			}
			if !fresh {
				t.Error("a retry has to come with a fresh token")
			}
			if got := client.Stats.Retried.Load(); got != int64(len(want)-1) {
				t.Errorf("counted %d retries", got)
			}
		})
	}
}

func TestCurrentEpoch(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]uint64{"epoch 6 is stale; currentEpoch=7": 7, "currentEpoch=12, sorry": 12} {
		if got, ok := (&xrpc.CallError{Message: message}).CurrentEpoch(); !ok || got != want {
			t.Errorf("%q: %d, %t", message, got, ok)
		}
	}
	for _, message := range []string{"", "epoch 6 is stale", "currentEpoch=", "currentEpoch=x"} {
		if got, ok := (&xrpc.CallError{Message: message}).CurrentEpoch(); ok {
			t.Errorf("%q: %d", message, got)
		}
	}
}
