package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlsd/internal/await"
	"mlsd/internal/pgtest"
)

// ask sends a request to the admin listener and returns its status. headers are names, each
// followed by its value; Host is the host.
func ask(t *testing.T, verb, address string, headers ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), verb, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// adminPages are what the admin listener tells about the node.
var adminPages = []string{"/", "/queues", "/checks", "/actions", "/metrics", "/check", "/check/clients",
	"/debug/pprof/", "/admin/account/show?did=did:web:a.example"}

// H11: a page in a browser reads the admin listener by DNS rebinding, or from another site.
func TestBrowsersCannotReadTheAdminListener(t *testing.T) {
	t.Parallel()
	s := boot(t, nil, "--database-url", pgtest.URL(t), "--admin-hosts", "ops.example, 192.0.2.7")
	_, port, _ := strings.Cut(strings.TrimPrefix(s.admin, "http://"), ":")
	for _, page := range adminPages {
		for _, bad := range [][]string{
			{"Host", "evil.example"}, {"Host", "evil.example:" + port}, {"Host", "localhost.evil.example"},
			{"Host", "192.0.2.8"},
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"},
			{"Origin", "null"},
		} {
			if got := ask(t, http.MethodGet, s.admin+page, bad...); got != http.StatusForbidden {
				t.Errorf("%s with %v: %d", page, bad, got)
			}
		}
		for _, good := range [][]string{
			nil, {"Host", "localhost"}, {"Host", "LOCALHOST:" + port}, {"Host", "[::1]:" + port}, {"Host", "127.0.0.2"},
			{"Host", "ops.example:80"}, {"Host", "192.0.2.7"},
			{"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, {"Origin", s.admin},
		} {
			if got := ask(t, http.MethodGet, s.admin+page, good...); got != http.StatusOK {
				t.Errorf("%s with %v: %d", page, good, got)
			}
		}
	}
	if got := ask(t, http.MethodGet, s.admin+"/readyz", "Host", "10.1.2.3:8081"); got != http.StatusOK {
		t.Errorf("a health check by another address: %d", got)
	}
}

// G14: the answer to a scrape by a name that is not set says what was got, what is wanted, and what to
// set; with that setting the scrape succeeds.
func TestScrapeByName(t *testing.T) {
	t.Parallel()
	scraped := func(flags ...string) (status int, body string) {
		t.Helper()
		s := boot(t, nil, append([]string{"--database-url", pgtest.URL(t)}, flags...)...)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.admin+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "Node1.internal:8081"
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }() // it was read
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	status, body := scraped()
	for _, want := range []string{"UnknownHost", `is \"node1.internal\"`, "takes localhost, the address of the connection",
		"set MLSD_ADMIN_HOSTS=node1.internal"} {
		if status != http.StatusForbidden || !strings.Contains(body, want) {
			t.Errorf("the answer lacks %q: %d %s", want, status, body)
		}
	}
	if status, body := scraped("--admin-hosts", "node1.internal"); status != http.StatusOK {
		t.Errorf("with the setting: %d %s", status, body)
	}
}

// H11: with tokens, nothing but the health checks is answered without one, and the read token
// changes nothing. Finding S10: the token for metrics reads metrics only, and neither of the two reads
// what is held about an account.
func TestAdminTokens(t *testing.T) {
	t.Parallel()
	const write, readOnly, metrics = "the-admin-token-of-this-test", "the-read-token-of-this-test",
		"the-metrics-token-of-this-test"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(write+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := boot(t, []string{"MLSD_ADMIN_READ_TOKEN=" + readOnly, "MLSD_ADMIN_METRICS_TOKEN=" + metrics},
		"--database-url", pgtest.URL(t), "--admin-token", "file:"+file, "--failpoints")
	for _, page := range []string{"/livez", "/readyz"} {
		if got := ask(t, http.MethodGet, s.admin+page); got != http.StatusOK {
			t.Errorf("%s without a token: %d", page, got)
		}
	}
	const export = "/admin/account/export"
	const arm = "/failpoints?point=after-commit&method=x&action=error"
	for _, c := range []struct {
		verb, page string
		reads      int // status with the read token
	}{
		{http.MethodGet, "/metrics", http.StatusOK},
		{http.MethodGet, "/check", http.StatusOK},
		{http.MethodGet, "/check/clients", http.StatusOK},
		{http.MethodGet, "/admin/account/show?did=did:web:a.example", http.StatusOK},
		{http.MethodGet, "/debug/pprof/", http.StatusForbidden},
		{http.MethodPost, arm, http.StatusForbidden},
		{http.MethodPost, export, http.StatusForbidden},
	} {
		want := http.StatusForbidden
		if c.page == "/metrics" {
			want = http.StatusOK
		}
		if got := ask(t, c.verb, s.admin+c.page, "Authorization", "Bearer "+metrics); got != want {
			t.Errorf("%s with the token for metrics: %d", c.page, got)
		}
		admins := http.StatusOK
		if c.page == export {
			admins = http.StatusBadRequest // it lacks its body
		}
		for _, refused := range []string{"", "Bearer wrong", "Bearer ", "Basic " + write, write, "Bearer " + write + "x"} {
			if got := ask(t, c.verb, s.admin+c.page, "Authorization", refused); got != http.StatusUnauthorized {
				t.Errorf("%s with %q: %d", c.page, refused, got)
			}
		}
		if got := ask(t, c.verb, s.admin+c.page, "Authorization", "Bearer "+readOnly); got != c.reads {
			t.Errorf("%s with the read token: %d", c.page, got)
		}
		if got := ask(t, c.verb, s.admin+c.page, "Authorization", "Bearer "+write); got != admins {
			t.Errorf("%s with the admin token: %d", c.page, got)
		}
		if got := ask(t, c.verb, s.admin+c.page, "Authorization", "Bearer "+write, "Host",
			"evil.example"); got != http.StatusForbidden {
			t.Errorf("%s with the admin token from a foreign name: %d", c.page, got)
		}
	}
}

// H11: a listener that other machines can reach does not start without a token.
func TestOpenAdminListenerNeedsAToken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		environ []string
		args    []string
		want    string
	}{
		{nil, []string{"--admin-listen", "0.0.0.0:0"}, "set MLSD_ADMIN_TOKEN, or listen on 127.0.0.1"},
		{nil, []string{"--admin-listen", ":0"}, "can be reached from other machines"},
		{[]string{"MLSD_ADMIN_TOKEN=short"}, nil, "at least 16 characters"},
		{[]string{"MLSD_ADMIN_TOKEN=sixteen characters and more"}, nil, "without spaces"},
		{[]string{"MLSD_ADMIN_READ_TOKEN=sixteen-characters"}, nil, "MLSD_ADMIN_TOKEN is not"},
		{[]string{"MLSD_ADMIN_READ_TOKEN=sixteen-characters", "MLSD_ADMIN_TOKEN=sixteen-characters"}, nil, "must differ"},
		{[]string{"MLSD_ADMIN_TOKEN=file:/dev/null"}, nil, "the file /dev/null is empty"},
		{[]string{"MLSD_ADMIN_TOKEN=file:/nowhere/token"}, nil, "no such file"},
	} {
		launch(t, c.environ, append([]string{"--database-url", "postgres://127.0.0.1:1/none"}, c.args...)...).fails(c.want)
	}
	s := launch(t, []string{"MLSD_ADMIN_TOKEN=sixteen-characters"}, "--database-url", pgtest.URL(t), "--admin-listen",
		"0.0.0.0:0")
	await.Until(t, "it serves", func() bool { return strings.Contains(s.stdout.String(), "mlsd listening on") })
	s.stop()
}
