package clientsim

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// adminServer is a server of which only the admin listener is there, and it
// answers GET /check with this.
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

// Every text of the server's own checker is a violation of the scenario, and so
// is an answer that says nothing.
func TestDatabaseCheckIsCounted(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		status int
		answer string
		want   []string
	}{
		"all kept":      {200, `[]`, nil},
		"two broken":    {200, `["dense log: a gap", "one commit per epoch: two"]`, []string{"dense log: a gap", "epoch: two"}},
		"no check made": {500, `the check could not be made`, []string{"500 Internal Server Error"}},
		"no list":       {200, `null`, []string{"null is no list"}},
		"no JSON":       {200, `ok`, []string{"invalid character"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := target{server: adminServer(t, tt.status, tt.answer), transport: http.DefaultTransport}
			w := newWorld(to, Options{}, 0, func(string) {})
			w.Check(t.Context())
			var result Result
			result.count(w.Stats, w.Found())
			if result.Violated != len(tt.want) {
				t.Fatalf("%d violations %v, want %d", result.Violated, result.Violations, len(tt.want))
			}
			for i, want := range tt.want {
				if !strings.Contains(result.Violations[i].What, want) {
					t.Errorf("violation %q, want %q in it", result.Violations[i].What, want)
				}
			}
		})
	}
}
