package clientsim

import (
	"net/http"
	"strings"
	"testing"
)

// reply is one answer of a fake server under a key.
type reply struct {
	status int
	body   string
	replay bool
}

func TestLedger(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		replies []reply
		want    string
	}{
		"an honest replay":          {replies: []reply{{200, "a", false}, {200, "a", true}, {200, "a", true}}},
		"a refusal, then a success": {replies: []reply{{409, "{}", false}, {200, "a", false}, {200, "a", true}}},
		"a replay after a crash":    {replies: []reply{{500, "{}", false}, {200, "a", true}}},
		"a changed replay":          {replies: []reply{{200, "a", false}, {200, "b", true}}, want: `answered 200 "b", and before 200 "a"`},
		"a changed status":          {replies: []reply{{200, "a", false}, {201, "a", true}}, want: "answered 201"},
		"done twice":                {replies: []reply{{200, "a", false}, {200, "a", false}}, want: "answered 2 times as if for the first time"},
		"a replay of nothing":       {replies: []reply{{200, "a", true}}, want: "the very first request was answered as a replay"},
		"replays without a first":   {replies: []reply{{409, "{}", false}, {200, "a", true}}, want: "1 replays of an answer that was never given"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client, _, ledger := testNet(t, func(n int, w http.ResponseWriter) {
				r := tt.replies[n]
				if r.replay {
					w.Header().Set("X-Idempotency-Replay", "true")
				}
				say(r.status, r.body)(n, w)
			})
			who := testAccount(t, nil, 0)
			for range tt.replies {
				// What the client makes of it is not the question.
				_, _ = client.Once(t.Context(), who, testCall())
			}
			found := ledger.Settle()
			if tt.want == "" {
				if len(found) != 0 {
					t.Errorf("violations: %v", found)
				}
				return
			}
			if len(found) == 0 || !strings.Contains(found[0].What, tt.want) {
				t.Errorf("no violation with %q: %v", tt.want, found)
			}
		})
	}
}

// Two callers with the same key, and two convos, are separate.
func TestLedgerKeepsCallersApart(t *testing.T) {
	t.Parallel()
	_, client, _, ledger := testNet(t, func(n int, w http.ResponseWriter) { say(200, string(rune('a'+n)))(n, w) })
	elsewhere := testCall()
	elsewhere.Convo = "another"
	for i, call := range []Call{testCall(), testCall(), elsewhere} {
		if _, err := client.Once(t.Context(), testAccount(t, nil, i), call); err != nil {
			t.Fatal(err)
		}
	}
	if found := ledger.Settle(); len(found) != 0 {
		t.Errorf("violations: %v", found)
	}
}
