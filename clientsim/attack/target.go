package attack

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// Target is the server as an attacker sees it, with the attacker's own addresses.
type Target struct {
	Base     string // URL of the public listener
	Addr     string // host:port of the public listener
	Admin    string // URL of the admin listener
	Audience string
	// Victims are DIDs of honest users. Each has published KeyPackages.
	Victims []syntax.DID
	// Bystanders are honest operations that only this attack needs. Prepare adds them.
	Bystanders []Operation
	Leaves     int   // number of leaves of a costly GroupInfo
	Fill       int64 // how many bytes an attack on the disk sends before the calm phase

	env     *testbed.Environment
	honest  *honest
	slot    int // the second byte of the attacker's addresses
	answers *answers
	closers *[]func() error
}

// answers counts what the attacker tried and what the server answered.
type answers struct {
	mu       sync.Mutex // guards the fields below
	attempts int64
	byStatus map[string]int64
}

// tried counts an attempt.
func (t *Target) tried() {
	t.answers.mu.Lock()
	defer t.answers.mu.Unlock()
	t.answers.attempts++
}

// noAnswer counts requests without an answer.
const noAnswer = "none"

// answered counts an answer by its status. 0 means that there was none.
func (t *Target) answered(status int) {
	name := noAnswer
	if status != 0 {
		name = strconv.Itoa(status)
	}
	t.answers.mu.Lock()
	defer t.answers.mu.Unlock()
	t.answers.byStatus[name]++
}

// atEnd registers a function that is called after the measurement.
func (t *Target) atEnd(f func() error) { *t.closers = append(*t.closers, f) }

// from returns the target for another attacker, who has different addresses.
func (t *Target) from(slot int) *Target {
	other := *t
	other.slot = slot
	return &other
}

// perSlot is how many addresses one attacker has.
const perSlot = 250

// address returns the n-th address of the attacker.
func (t *Target) address(n int) net.IP { return net.IPv4(127, 1, byte(t.slot), byte(1+n%perSlot)) }

// connectLimit is how long an attacker waits for a connection.
const connectLimit = 3 * time.Second

// open connects from the attacker's n-th address and sends the beginning of a request. The
// connection is closed by end, or when ctx ends.
func (t *Target) open(ctx context.Context, n int, head string) (conn net.Conn, end func(), err error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: t.address(n)}, Timeout: connectLimit}
	if conn, err = d.DialContext(ctx, "tcp", t.Addr); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	end = func() {
		stop()
		_ = conn.Close()
	}
	if _, err = io.WriteString(conn, head); err != nil {
		end()
	}
	return conn, end, err
}

// web returns an HTTP client that connects from the attacker's n-th address.
func (t *Target) web(n int) *http.Client {
	transport := transportFrom(t.address(n))
	t.atEnd(func() error { transport.CloseIdleConnections(); return nil })
	return &http.Client{Transport: transport, Timeout: xrpc.AttemptLimit}
}

func transportFrom(ip net.IP) *http.Transport {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: ip}, Timeout: connectLimit}
	return &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 512, DisableCompression: true}
}

// client returns an XRPC client that connects from the attacker's n-th address.
func (t *Target) client(n int) *xrpc.Client {
	return xrpc.NewClient(t.Base, t.Audience, t.web(n).Transport, &xrpc.Stats{})
}

// accounts makes n accounts of the attacker. Accounts cost nothing.
func (t *Target) accounts(n int) []*xrpc.Account {
	all := make([]*xrpc.Account, n)
	for i := range all {
		all[i] = Must(t.env.Account(p256))
	}
	return all
}

// tokenLife is the lifetime of tokens that an attacker uses more than once.
const tokenLife = 30 * time.Minute

// tokens makes a token of each account for a method. A token for a query or a stream can be used
// more than once.
func (t *Target) tokens(accounts []*xrpc.Account, method string) []string {
	tokens := make([]string, len(accounts))
	for i, who := range accounts {
		tokens[i] = Must(who.TokenFor(t.Audience, syntax.NSID(method), tokenLife))
	}
	return tokens
}

// Serials of accounts decide the curve of their keys.
const (
	k256 = 0
	p256 = 1
)

// once sends a call and counts it. The error is the server's refusal, or the error of the
// connection.
func (t *Target) once(ctx context.Context, c *xrpc.Client, who *xrpc.Account, call xrpc.Call) (xrpc.Answer, error) {
	t.tried()
	answer, err := c.Once(ctx, who, call)
	t.answered(statusOf(answer, err))
	return answer, err
}

func statusOf(answer xrpc.Answer, err error) int {
	var named *xrpc.CallError
	if errors.As(err, &named) {
		return named.Status
	}
	return answer.Status
}

// send makes one HTTP request and counts its answer. It reads up to 64 KiB of the answer. token may
// be "". headers are names and values in turn.
func (t *Target) send(ctx context.Context, web *http.Client, method, path, token string, body []byte,
	headers ...string) (int, []byte) {
	t.tried()
	req, err := http.NewRequestWithContext(ctx, method, t.Base+path, bytes.NewReader(body))
	if err != nil {
		t.answered(0)
		return 0, nil
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := web.Do(req)
	if err != nil {
		t.answered(0)
		return 0, nil
	}
	t.answered(resp.StatusCode)
	content, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // the attacker does not need the whole answer
	_ = resp.Body.Close()
	return resp.StatusCode, content
}

// forge makes a token that nobody signed.
func forge(issuer syntax.DID, audience, method string) string {
	now := time.Now().Unix()
	claims, _ := json.Marshal(map[string]any{ // this never fails
		"iss": issuer, "aud": audience, "lxm": method, "iat": now, "exp": now + 60, "jti": rand.Text(),
	})
	// A signature with a small r and s passes every check of its form.
	signature := make([]byte, 64)
	copy(signature[1:32], mlsclient.RandomBytes(31))
	copy(signature[33:], mlsclient.RandomBytes(31))
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"ES256K","typ":"JWT"}`)) + "." + encode(claims) + "." + encode(signature)
}

func path(method string) string { return "/xrpc/" + method }

// unknownDID makes a did:plc that no directory knows.
func unknownDID() syntax.DID {
	return syntax.DID("did:plc:" + strings.ToLower(rand.Text())[:24])
}

// convo makes a convo of the attacker's accounts. The first account creates it.
func (t *Target) convo(ctx context.Context, c *xrpc.Client, members []*xrpc.Account) (id string, group []byte,
	err error) {
	return testbed.NewConvo(ctx, c, members[0], testbed.DIDsOf(members[1:]), nil)
}

func createCall(group []byte, others []syntax.DID) xrpc.Call {
	return xrpc.CreateCall(group, mlsclient.SuiteX25519, others, &mlsclient.Staged{Epoch: 1}, xrpc.NewKey())
}

// header returns the beginning of a request, up to the headers that describe its body.
func (t *Target) header(verb, method, token string) string {
	return fmt.Sprintf("%s /xrpc/%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: "+
		"application/json\r\n", verb, method, t.Addr, token)
}
