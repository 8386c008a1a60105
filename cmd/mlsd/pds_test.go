package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/cmd/mlsd-dev/devserver"
	"mlsd/internal/await"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth/authtest"
)

// pdsFolder names a folder with the npm packages of testdata/pds. cmd/mlsd/checkpds.sh sets it.
const pdsFolder = "MLSD_TEST_PDS"

// TestAccountsOfAPDS follows the events of a real PDS, and prints how long each takes to have its
// effect.
func TestAccountsOfAPDS(t *testing.T) {
	folder := os.Getenv(pdsFolder)
	if folder == "" {
		t.Skip("SKIPPED: " + pdsFolder + " is not set; cmd/mlsd/checkpds.sh runs this test with a real PDS")
	}
	plc := httptest.NewServer(devserver.NewDirectory(slog.Default()))
	t.Cleanup(plc.Close)
	pds := newPDS(t, folder, plc.URL)
	s := boot(t, nil, "--database-url", pgtest.URL(t), "--service-did", serviceDID, "--plc-url", plc.URL, "--relay-url",
		pds.url, "--erase-after", "1h")
	await.Until(t, "the node follows the PDS", func() bool { return scrape(t, s)["mlsd_relay_connected"] == 1 })

	alice := pds.account("alice.test")
	group := hex.EncodeToString([]byte(rand.Text()))
	in := &mlsapi.CreateConvoInput{GroupID: group, CipherSuite: mlstest.Suite.String()}
	status, name := alice.call(s, http.MethodPost, mlsapi.NSIDCreateConvo, alice.token(mlsapi.NSIDCreateConvo), encode(in))
	if status != http.StatusOK {
		t.Fatalf("createConvo: %d %s", status, name)
	}
	token := alice.token(mlsapi.NSIDGetConvos) // for all that follows: a token of a query can be used again
	effect := func(what string, act func(), wantStatus int, wantName string) {
		t.Helper()
		act()
		said := time.Now()
		await.Until(t, what, func() bool {
			status, name := alice.call(s, http.MethodGet, mlsapi.NSIDGetConvos, token, nil)
			return status == wantStatus && name == wantName
		})
		t.Logf("%-22s has its effect %4d ms after the PDS has answered", what, time.Since(said).Milliseconds())
	}
	effect("createAccount", func() {}, http.StatusOK, "")
	effect("deactivateAccount", func() { alice.post("com.atproto.server.deactivateAccount", map[string]any{}) },
		http.StatusForbidden, "AccountInactive")
	effect("activateAccount", func() { alice.post("com.atproto.server.activateAccount", nil) }, http.StatusOK, "")
	takedown := func(applied bool) func() {
		return func() {
			pds.admin("com.atproto.admin.updateSubjectStatus", map[string]any{
				"subject":  map[string]any{"$type": "com.atproto.admin.defs#repoRef", "did": alice.did},
				"takedown": map[string]any{"applied": applied, "ref": "test"},
			})
		}
	}
	effect("a takedown", takedown(true), http.StatusForbidden, "AccountInactive")
	effect("its end", takedown(false), http.StatusOK, "")

	// The account gets a new key in the PLC directory. The PDS says only that something has changed.
	// Its own key, which signed the token, is then the old one.
	newKey := authtest.NewIdentity(t)
	effect("a new key", func() {
		replaceKey(t, plc.URL, alice.did, newKey.PublicKey(t))
		pds.admin("com.atproto.admin.updateAccountHandle", map[string]any{"did": alice.did, "handle": "alice2.test"})
	}, http.StatusUnauthorized, "InvalidToken")
	newKey.DID = alice.did
	rotated := newKey.Authorization(t, serviceDID, mlsapi.NSIDGetConvos, time.Now())
	if status, name := alice.call(s, http.MethodGet, mlsapi.NSIDGetConvos, rotated, nil); status != http.StatusOK {
		t.Fatalf("a token of the new key: %d %s", status, name)
	}
	token = rotated
	effect("deleteAccount", func() { pds.admin("com.atproto.admin.deleteAccount", map[string]any{"did": alice.did}) },
		http.StatusForbidden, "AccountInactive")
	for name, want := range map[string]float64{"mlsd_relay_gaps_total": 0,
		`mlsd_account_statuses_total{status="deleted"}`: 1, `mlsd_relay_events_total{kind="invalid"}`: 0} {
		if got := scrape(t, s)[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// pds is a PDS in a process of its own.
type pds struct {
	t   *testing.T
	url string
}

const adminPassword = "admin-password"

func newPDS(t *testing.T, folder, plcURL string) *pds {
	t.Helper()
	dir := t.TempDir()
	script, err := os.ReadFile(filepath.Join("testdata", "pds", "pds.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "pds.mjs")
	if err := errors.Join(os.WriteFile(program, script, 0o600),
		os.Symlink(filepath.Join(folder, "node_modules"), filepath.Join(dir, "node_modules"))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join(folder, "node_modules", ".bin", "node"), program)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"PDS_HOSTNAME=localhost", "PDS_DATA_DIRECTORY="+dir,
		"PDS_BLOBSTORE_DISK_LOCATION="+filepath.Join(dir, "blobs"),
		"PDS_DID_PLC_URL="+plcURL, "PDS_JWT_SECRET=jwt-secret", "PDS_ADMIN_PASSWORD="+adminPassword, "PDS_DEV_MODE=true",
		"PDS_INVITE_REQUIRED=false",
		"PDS_PLC_ROTATION_KEY_K256_PRIVATE_KEY_HEX="+strings.Repeat("11", 32), "PDS_SERVICE_HANDLE_DOMAINS=.test",
		"LOG_ENABLED=false")
	stdout := newOutput()
	cmd.Stdout, cmd.Stderr = stdout, testWriter{t}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		cancel()
		_ = stdin.Close() // it has ended
		<-ended
	})
	found := stdout.await(t, regexp.MustCompile(`PDS on (http://localhost:\d+)\n`), ended)
	if found == nil {
		t.Fatalf("the PDS does not start: %s", stdout)
	}
	return &pds{t, found[1]}
}

// testWriter writes into the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// call calls a method of the PDS and decodes its answer.
func (p *pds) call(verb, path, authorization string, in, out any) {
	p.t.Helper()
	call(p.t, verb, p.url+"/xrpc/"+path, authorization, in, out)
}

// call sends in and decodes the answer into out, both JSON, unless they are nil.
func call(t *testing.T, verb, url, authorization string, in, out any) {
	t.Helper()
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(raw)
	}
	r, err := http.NewRequestWithContext(t.Context(), verb, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s %v", url, resp.StatusCode, answer, err)
	}
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			t.Fatal(err)
		}
	}
}

func (p *pds) admin(nsid string, in any) {
	p.t.Helper()
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth("admin", adminPassword)
	p.call(http.MethodPost, nsid, r.Header.Get("Authorization"), in, nil)
}

// pdsAccount is an account of a PDS.
type pdsAccount struct {
	pds    *pds
	did    syntax.DID
	access string
}

func (p *pds) account(handle string) *pdsAccount {
	p.t.Helper()
	var out struct {
		DID       syntax.DID
		AccessJWT string `json:"accessJwt"`
	}
	p.call(http.MethodPost, "com.atproto.server.createAccount", "", map[string]any{
		"handle": handle, "email": handle + "@example.com", "password": "password",
	}, &out)
	return &pdsAccount{p, out.DID, "Bearer " + out.AccessJWT}
}

func (a *pdsAccount) post(nsid string, in any) {
	a.pds.t.Helper()
	a.pds.call(http.MethodPost, nsid, a.access, in, nil)
}

// token returns the Authorization of a service-auth token that the PDS makes.
func (a *pdsAccount) token(nsid string) string {
	a.pds.t.Helper()
	var out struct{ Token string }
	path := fmt.Sprintf("com.atproto.server.getServiceAuth?aud=%s&lxm=%s&exp=%d", serviceDID, nsid,
		time.Now().Add(50*time.Minute).Unix())
	a.pds.call(http.MethodGet, path, a.access, nil, &out)
	return "Bearer " + out.Token
}

// call calls a method of mlsd, and returns the status and the error's name.
func (a *pdsAccount) call(s *server, verb, nsid, authorization string, body []byte) (status int, name string) {
	t := a.pds.t
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), verb, s.public+"/xrpc/"+nsid, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", authorization)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	var e struct{ Error string }
	if err := errors.Join(json.NewDecoder(resp.Body).Decode(&e), resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, e.Error
}

// replaceKey gives an account another signing key, as an operation would that somebody else signs.
// The PDS makes its next operation from this one.
func replaceKey(t *testing.T, plc string, did syntax.DID, key atcrypto.PublicKey) {
	t.Helper()
	var op map[string]any
	call(t, http.MethodGet, plc+"/"+did.String()+"/log/last", "", nil, &op)
	op["verificationMethods"] = map[string]string{"atproto": key.DIDKey()}
	call(t, http.MethodPost, plc+"/"+did.String(), "", op, nil)
}
