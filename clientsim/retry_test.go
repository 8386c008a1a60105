package clientsim

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRetryRule(t *testing.T) {
	t.Parallel()
	busy := say(409, `{"error":"RequestInProgress","message":"wait"}`, "Retry-After", "0")
	tests := map[string]struct {
		first func(int, http.ResponseWriter)
		again bool
		name  string
	}{
		"in progress":    {busy, true, ""},
		"rate limited":   {say(429, `{"error":"RateLimitExceeded"}`, "Retry-After", "0"), true, ""},
		"unavailable":    {say(503, `{"error":"ServiceUnavailable"}`), true, ""},
		"bad gateway":    {say(502, `not json`), true, ""},
		"another epoch":  {say(409, `{"error":"EpochMismatch","message":"epoch 6 is stale; currentEpoch=7"}`), false, "EpochMismatch"},
		"conflict":       {say(409, `{"error":"IdempotencyConflict"}`), false, "IdempotencyConflict"},
		"unknown method": {say(501, `{"error":"MethodNotImplemented"}`), false, "MethodNotImplemented"},
		"bad token":      {say(401, `{"error":"InvalidToken"}`), false, "InvalidToken"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, client, _, _ := testNet(t, func(n int, w http.ResponseWriter) {
				if n == 0 {
					tt.first(n, w)
					return
				}
				say(200, "{}")(n, w)
			})
			_, err := client.Do(t.Context(), testAccount(t, nil, 0), testCall())
			if got := ErrorName(err); got != tt.name {
				t.Errorf("error %q, want %q (%v)", got, tt.name, err)
			}
			want := []string{string(testCall().Body)}
			if tt.again {
				want = append(want, want[0])
			}
			arrived, fresh := fake.seen()
			if diff := cmp.Diff(want, arrived); diff != "" {
				t.Errorf("arrived (-want +got):\n%s", diff)
			}
			if !fresh {
				t.Error("a retry has to come with a fresh token")
			}
			if got := client.stats.Retried.Load(); got != int64(len(want)-1) {
				t.Errorf("counted %d retries", got)
			}
		})
	}
}

func TestCurrentEpoch(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]uint64{"epoch 6 is stale; currentEpoch=7": 7, "currentEpoch=12, sorry": 12} {
		if got, ok := (&CallError{Message: message}).CurrentEpoch(); !ok || got != want {
			t.Errorf("%q: %d, %t", message, got, ok)
		}
	}
	for _, message := range []string{"", "epoch 6 is stale", "currentEpoch=", "currentEpoch=x"} {
		if got, ok := (&CallError{Message: message}).CurrentEpoch(); ok {
			t.Errorf("%q: %d", message, got)
		}
	}
}
