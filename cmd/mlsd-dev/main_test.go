package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"mlsd/api/mlsapi"
	"mlsd/cmd/mlsd-dev/devserver"
	"mlsd/events"
	"mlsd/internal/pgtest"
)

// devClient is a client of mlsd-dev, with curl's means: it makes its accounts and tokens there.
type devClient struct {
	t   testing.TB
	url string
}

// do sends a request. An error is one of the connection.
func (c devClient) do(verb, path, token, body string) (answer, error) {
	a := answer{t: c.t}
	req, err := http.NewRequest(verb, c.url+path, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	a.status, a.header = resp.StatusCode, resp.Header
	a.body, err = io.ReadAll(resp.Body)
	return a, errors.Join(err, resp.Body.Close())
}

// dev asks /dev, which must answer 200.
func (c devClient) dev(what, body string) []byte {
	c.t.Helper()
	a, err := c.do(http.MethodPost, "/dev/"+what, "", body)
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
	return a.ok()
}

func (c devClient) account() devserver.Account {
	c.t.Helper()
	return read[devserver.Accounts](c.t, c.dev("accounts", "")).Accounts[0]
}

// call calls a method as an account, with a token from the server.
func (c devClient) call(verb, nsid string, who devserver.Account, body string) (answer, error) {
	c.t.Helper()
	token := read[devserver.Token](c.t, c.dev("token", `{"did":"`+who.DID.String()+`","lxm":"`+nsid+`"}`))
	return c.do(verb, "/xrpc/"+nsid, token.Token, body)
}

// convos returns the ids of the account's convos.
func (c devClient) convos(who devserver.Account) (ids []string) {
	c.t.Helper()
	a, err := c.call(http.MethodGet, mlsapi.NSIDGetConvos, who, "")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, one := range read[mlsapi.GetConvosOutput](c.t, a.ok()).Conversations {
		ids = append(ids, one.ID)
	}
	return ids
}

func creationBody(key string) string {
	return `{"groupId":"0102","cipherSuite":"MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519","idempotencyKey":"` + key + `"}`
}

// One server for several tests, because a PostgreSQL takes a second.
func TestDev(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	c, s := bootDev(t)
	dir := regexp.MustCompile(`dir=(\S+/mlsd-dev-\d+)/postgres`).FindStringSubmatch(s.log.String())
	t.Run("faults", c.testFaults)
	t.Run("reset", c.testReset)
	t.Run("devices", c.testDevices)
	t.Run("refusals", c.testRefusals)
	t.Run("README", c.testPage("README.md", 2))
	t.Run("DEV", c.testPage("docs/clients/DEV.md", 1))
	t.Run("reference", c.testReference)
	s.stop()
	if dir == nil {
		t.Fatalf("the log does not name the directory:\n%s", &s.log)
	}
	if _, err := os.Stat(dir[1]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// After a lost answer, and after a 503, a retry gets the first answer or is the first attempt.
func (c devClient) testFaults(t *testing.T) {
	c.t = t
	alice := c.account()
	create := func(key string) (answer, error) {
		return c.call(http.MethodPost, mlsapi.NSIDCreateConvo, alice, creationBody(key))
	}
	plan := func(fault string) {
		c.dev("faults", `{"lxm":"`+mlsapi.NSIDCreateConvo+`","did":"`+alice.DID.String()+`",`+fault+`}`)
	}
	plan(`"kind":"cut"`)
	if _, err := create("k"); err == nil || len(c.convos(alice)) != 0 {
		t.Errorf("cut: %v; convos %v", err, c.convos(alice))
	}
	plan(`"kind":"status","status":503,"retryAfter":2`)
	a, err := create("k")
	if err != nil {
		t.Fatal(err)
	}
	if a.fails(503, "ServiceUnavailable"); a.header.Get("Retry-After") != "2" || len(c.convos(alice)) != 0 {
		t.Errorf("status: %v; convos %v", a.header, c.convos(alice))
	}
	plan(`"kind":"loseAnswer"`)
	if a, err := create("k"); err == nil {
		t.Errorf("loseAnswer: %d %s", a.status, a.body)
	}
	made := c.convos(alice)
	plan(`"kind":"delay","ms":1`)
	plan(`"kind":"slow","ms":1`)
	for range 2 {
		again, err := create("k")
		if err != nil {
			t.Fatal(err)
		}
		if id := read[mlsapi.ConvoView](t, again.ok()).ID; !again.replayed() || cmp.Diff([]string{id}, made) != "" {
			t.Errorf("the retry made %s, replayed %v; the lost answer made %v", id, again.replayed(), made)
		}
	}
	for _, f := range read[devserver.Faults](t, c.get("/dev/faults").ok()).Faults {
		if f.Struck != 1 {
			t.Errorf("%s struck %d times", f.Kind, f.Struck)
		}
	}
}

func (c devClient) get(path string) answer {
	c.t.Helper()
	a, err := c.do(http.MethodGet, path, "", "")
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

// After a reset nothing of before is there, in the database or in memory, however often. Event
// streams end.
func (c devClient) testReset(t *testing.T) {
	c.t = t
	c.dev("reset", "{}")
	var former devserver.Account
	for range 2*spares + 1 { // every database is used again
		who := c.account()
		made, err := c.call(http.MethodPost, mlsapi.NSIDCreateConvo, who, creationBody("k"))
		if err != nil {
			t.Fatal(err)
		}
		made.ok()
		if convos := c.convos(who); len(convos) != 1 {
			t.Fatalf("convos %v", convos)
		}
		token := read[devserver.Token](t,
			c.dev("token", `{"did":"`+who.DID.String()+`","lxm":"`+mlsapi.NSIDGetConvos+`"}`)).Token
		ended := c.stream(who)
		c.dev("reset", "{}")
		if text := <-ended; !strings.Contains(text, "event: membershipEvent") && !strings.Contains(text, "event: infoEvent") {
			t.Errorf("the stream ended with %q", text)
		}
		// The node knew the account's key a moment ago.
		a, err := c.do(http.MethodGet, "/xrpc/"+mlsapi.NSIDGetConvos, token, "")
		if err != nil {
			t.Fatal(err)
		}
		a.fails(401, "InvalidToken")
		former = who
	}
	if a := c.get("/" + former.DID.String()); a.status != 404 {
		t.Errorf("the directory still has %s: %d", former.DID, a.status)
	}
}

// stream subscribes to the account's events. The channel has all of them when the stream has ended.
func (c devClient) stream(who devserver.Account) <-chan string {
	c.t.Helper()
	nsid := mlsapi.NSIDStreamConvoEvents
	token := read[devserver.Token](c.t, c.dev("token", `{"did":"`+who.DID.String()+`","lxm":"`+nsid+`"}`)).Token
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.url+"/xrpc/"+nsid+"?cursor=0", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%v, %v", resp, err)
	}
	ended := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(resp.Body) // an error is an end, too
		_ = resp.Body.Close()
		ended <- string(text)
	}()
	return ended
}

// Finding G6: each database that is kept ready for a reset has a store of attachments of its own. In
// one that they shared, the sweepers of all but one would find the claim of another database.
func TestDevStores(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long")
	}
	_, s := bootDev(t)
	dir := regexp.MustCompile(`dir=(\S+/mlsd-dev-\d+)/postgres`).FindStringSubmatch(s.log.String())
	if dir == nil {
		t.Fatalf("the log does not name the directory:\n%s", &s.log)
	}
	claims := filepath.Join(dir[1], "attachments", "*", "databases", "*")
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		found, err := filepath.Glob(claims)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(s.log.String(), "nothing is deleted from the store of attachments") {
			t.Fatal("two databases share a store")
		}
		if len(found) == spares+1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("claims: %q", found)
		}
	}
}

// An emptied database is as a new one, but for the generation of its event stream.
func TestDevEmpties(t *testing.T) {
	t.Parallel()
	db := pgtest.Session(t, pgtest.URL(t))
	exec := func(sql string) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(originalSQL)
	fresh := contents(t, db)
	// A row in every table that takes one without help, and what the server changes of the others.
	exec(`SET session_replication_role = replica`)
	exec(`INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version) SELECT 'welcome',
			gen_random_uuid(), 'x', 'x', 'available', 'x', 1`)
	exec(`INSERT INTO outbox (kind, size, created_at) SELECT 1, 1, now() FROM generate_series(1, 3)`)
	exec(`UPDATE stream SET head = 7, day = '2026-01-01', floor = 3`)
	exec(`DELETE FROM transitions WHERE entity = 'push_job'`)
	exec(`SET session_replication_role = origin`)
	if _, _, err := events.Restored(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if cmp.Diff(fresh, contents(t, db)) == "" {
		t.Fatal("nothing has changed")
	}
	exec(emptySQL)
	emptied := contents(t, db)
	if fresh["generations"] == emptied["generations"] {
		t.Error("the generation is the first one again")
	}
	delete(fresh, "generations")
	delete(emptied, "generations")
	if diff := cmp.Diff(fresh, emptied); diff != "" {
		t.Errorf("(-new +emptied):\n%s", diff)
	}
}

// contents returns the rows of each table, and the next number of each sequence.
func contents(t *testing.T, db *pgx.Conn) map[string]string {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT c.relname, query_to_xml(format('SELECT * FROM %s x ORDER BY x::text', c.oid::regclass), true, false, '')::text
		FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
		UNION ALL SELECT sequencename, coalesce(last_value, 0)::text FROM pg_sequences`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	var name, text string
	if _, err := pgx.ForEachRow(rows, []any{&name, &text}, func() error { all[name] = text; return nil }); err != nil {
		t.Fatal(err)
	}
	if len(all) < 30 {
		t.Fatalf("only %d tables", len(all))
	}
	return all
}

// mlsd-dev refuses to be a real service, and to be reached by others unless that is said.
func TestDevRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  string
		args []string
		want string
	}{
		{"MLSD_DATABASE_URL=postgres://u:secret@db/mlsd", nil, "MLSD_DATABASE_URL is set (it has a database of its own"},
		{"MLSD_DATA_DIR=/var/lib/mlsd", nil, "MLSD_DATA_DIR is set"},
		{"MLSD_WAL_ARCHIVE=/backup", nil, "MLSD_WAL_ARCHIVE is set"},
		{"MLSD_SERVICE_DID=did:web:mls.example.com", nil, "MLSD_SERVICE_DID is set"},
		{"MLSD_SERVICE_DID=did:web:localhost.example.com", nil, "MLSD_SERVICE_DID is set"},
		{"MLSD_PUBLIC_URL=https://mls.example.com", nil, "MLSD_PUBLIC_URL is set"},
		{"MLSD_PLC_URL=https://plc.example.com", nil, "MLSD_PLC_URL is set"},
		{"MLSD_ADMIT=/etc/mlsd/admitted", nil, "MLSD_ADMIT is set"},
		{"MLSD_RELAY_URL=wss://relay.example.com", nil, "MLSD_RELAY_URL is set"},
		{"MLSD_TRUSTED_PROXIES=10.0.0.0/8", nil, "MLSD_TRUSTED_PROXIES is set"},
		{"MLSD_READ_DATABASE_URL=postgres://u:secret@db/mlsd", nil, "MLSD_READ_DATABASE_URL is set"},
		{"MLSD_ADMIN_LISTEN=127.0.0.1:1", nil, "MLSD_ADMIN_LISTEN is set (it has no admin listener)"},
		{"MLSD_ADMIN_TOKEN=secret", nil, "MLSD_ADMIN_TOKEN is set"},
		{"MLSD_ADMIN_URL=http://127.0.0.1:1", nil, "MLSD_ADMIN_URL is set (it has no admin listener)"},
		{"MLSD_FAILPOINTS=true", nil, "MLSD_FAILPOINTS is set"},
		{"MLSD_APNS_KEY_FILE=key.p8", nil, "MLSD_APNS_KEY_FILE is set"},
		{"", []string{"--listen", "0.0.0.0:0"}, "pass --expose"},
		{"", []string{"--listen", ":0"}, "pass --expose"},
		{"", []string{"--listen", "[::]:0"}, "pass --expose"},
		{"", []string{"--listen", "192.0.2.1:0"}, "pass --expose"},
		{"", []string{"--listen", "192.0.2.1:0", "--expose"}, "every address"},
		{"", []string{"extra"}, "extra"},
	} {
		var environ []string
		if c.env != "" {
			environ = append(environ, c.env)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err := run(ctx, append([]string{"mlsd-dev"}, c.args...), environ, ending(cancel), io.Discard)
		served := ctx.Err() != nil
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") || served {
			t.Errorf("%s %v: %v, want %q; it served: %v", c.env, c.args, err, c.want, served)
		}
	}
}

// Finding S8: the names of this server are those of its machine and of its public URL, and addresses if
// others may reach it.
func TestOwnHost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host   string
		expose bool
		want   bool
	}{
		{"localhost:8080", false, true}, {"127.0.0.1:8080", false, true}, {"[::1]:8080", false, true},
		{"mlsd:8080", false, true}, {"MLSD", true, true},
		{"192.0.2.7:8080", false, false}, {"192.0.2.7:8080", true, true}, {"[2001:db8::7]:8080", true, true},
		{"evil.example:8080", false, false}, {"evil.example:8080", true, false}, {"192.0.2.7.evil.example", true, false},
		{"", true, false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/dev", nil)
		r.Host = c.host
		if got := ownHost("http://mlsd:8080", c.expose)(r); got != c.want {
			t.Errorf("%q, exposed %v: %v", c.host, c.expose, got)
		}
	}
}

// Directories of processes that were killed are removed, and those in use stay.
func TestDevRemovesLeftovers(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	made := func(name, file string) string {
		t.Helper()
		path := filepath.Join(base, name, file)
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	made("mlsd-dev-1", "postgres.lock")
	used, err := os.Open(made("mlsd-dev-2", "postgres.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	if err := syscall.Flock(int(used.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	made("mlsd-dev-3", "begun")
	made("other", "postgres.lock")
	if err := removeLeftovers(base); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(base, "*"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(base, "mlsd-dev-2"), filepath.Join(base, "mlsd-dev-3"), filepath.Join(base, "other")}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// ending is the output of a server that ends as soon as it says that it serves.
type ending context.CancelFunc

// Write implements io.Writer.
func (e ending) Write(text []byte) (int, error) {
	e()
	return len(text), nil
}
