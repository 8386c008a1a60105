package history

import (
	"net/http"
	"strings"
	"testing"

	"mlsd/clientsim/xrpc"
	"mlsd/clientsim/xrpc/xrpctest"
)

// reply is one answer of a fake server under a key.
type reply struct {
	status int
	body   string
	replay bool
}

// watched makes a client of a fake server, with a ledger between them.
func watched(t *testing.T, answer func(int, http.ResponseWriter)) (*xrpc.Client, *Ledger) {
	t.Helper()
	_, server := xrpctest.Serve(t, answer)
	ledger := NewLedger(server.Client().Transport)
	return xrpc.NewClient(server.URL, "did:web:test", ledger, &xrpc.Stats{}), ledger
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
		"a changed replay": {replies: []reply{{200, "a", false}, {200, "b", true}},
			want: `answered 200 "b", and before 200 "a"`},
		"a changed status": {replies: []reply{{200, "a", false}, {201, "a", true}}, want: "answered 201"},
		"done twice": {replies: []reply{{200, "a", false}, {200, "a", false}},
			want: "answered 2 times as if for the first time"},
		"a replay of nothing": {replies: []reply{{200, "a", true}},
			want: "the very first request was answered as a replay"},
		"replays without a first": {replies: []reply{{409, "{}", false}, {200, "a", true}},
			want: "1 replays of an answer that was never given"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, ledger := watched(t, func(n int, w http.ResponseWriter) {
				r := tt.replies[n]
				if r.replay {
					w.Header().Set("X-Idempotency-Replay", "true")
				}
				xrpctest.Say(r.status, r.body)(n, w)
			})
			who := xrpctest.Account(t, 0)
			for range tt.replies {
				// Only the ledger's verdict counts here.
				_, _ = client.Once(t.Context(), who, xrpctest.Call())
			}
			found := ledger.Violations()
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

// Different callers with the same key are separate, and so are different convos.
func TestLedgerKeepsCallersApart(t *testing.T) {
	t.Parallel()
	client, ledger := watched(t, func(n int, w http.ResponseWriter) { xrpctest.Say(200, string(rune('a'+n)))(n, w) })
	elsewhere := xrpctest.Call()
	elsewhere.Convo = "another"
	for i, call := range []xrpc.Call{xrpctest.Call(), xrpctest.Call(), elsewhere} {
		if _, err := client.Once(t.Context(), xrpctest.Account(t, i), call); err != nil {
			t.Fatal(err)
		}
	}
	if found := ledger.Violations(); len(found) != 0 {
		t.Errorf("violations: %v", found)
	}
}

// After a restore, the server may give a new answer to a key, or repeat its old answer. From then
// on, every answer must be the same again.
func TestLedgerAfterRestore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		replies []reply // the first reply comes before the restore
		broken  bool
	}{
		"a record that is still there": {replies: []reply{{200, "a", false}, {200, "a", true}}},
		"a lost one":                   {replies: []reply{{200, "a", false}, {200, "b", false}, {200, "b", true}}},
		"a lost one, done twice": {replies: []reply{{200, "a", false}, {200, "b", false}, {200, "b", false}},
			broken: true},
		"a changed replay": {replies: []reply{{200, "a", false}, {200, "b", true}}, broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, ledger := watched(t, func(n int, w http.ResponseWriter) {
				if tt.replies[n].replay {
					w.Header().Set("X-Idempotency-Replay", "true")
				}
				xrpctest.Say(tt.replies[n].status, tt.replies[n].body)(n, w)
			})
			who := xrpctest.Account(t, 0)
			for i := range tt.replies {
				if _, err := client.Once(t.Context(), who, xrpctest.Call()); err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					ledger.Restored()
				}
			}
			if found := ledger.Violations(); (len(found) > 0) != tt.broken {
				t.Errorf("violations: %v", found)
			}
		})
	}
}
