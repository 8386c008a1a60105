package testbed

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"mlsd/clientsim/history"
)

// adminServer is only the admin listener of a server. It answers GET /check.
func adminServer(t *testing.T, status int, answer string) *Proc {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /check", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		if _, err := io.WriteString(w, answer); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return &Proc{admin: server.URL}
}

// Every text of the server's own checker is a violation of the scenario. An unusable answer is also
// a violation.
func TestDatabaseCheckIsCounted(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		status int
		answer string
		want   []string
	}{
		"all kept": {200, `[]`, nil},
		"two broken": {200, `["dense log: a gap", "one commit per epoch: two"]`,
			[]string{"dense log: a gap", "epoch: two"}},
		"no check made": {500, `the check could not be made`, []string{"500 Internal Server Error"}},
		"no list":       {200, `null`, []string{"null is no list"}},
		"no JSON":       {200, `ok`, []string{"invalid character"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := Target{Server: adminServer(t, tt.status, tt.answer), Transport: http.DefaultTransport}
			w := NewWorld(to, Options{}, 0, func(string) {})
			w.Check(t.Context())
			found := w.Found()
			if len(found) != len(tt.want) {
				t.Fatalf("%d violations %v, want %d", len(found), found, len(tt.want))
			}
			for i, want := range tt.want {
				if found[i].Kind != history.Broken || !strings.Contains(found[i].What, want) {
					t.Errorf("violation %q, want %q in it", found[i].What, want)
				}
			}
		})
	}
}
