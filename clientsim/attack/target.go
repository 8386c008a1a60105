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

// Target is the server as an attacker sees it, with addresses to attack from.
type Target struct {
	Base     string // URL of the public listener
	Addr     string // host:port of it
	Admin    string // URL of the admin listener
	Audience string
	// Victims are DIDs of honest users. Each has published KeyPackages.
	Victims []syntax.DID
	// Bystanders are honest operations that only this attack needs. Prepare adds them.
	Bystanders []Operation
	Leaves     int   // of a costly GroupInfo
	Fill       int64 // bytes that an attack on the disk sends before the calm phase

	env     *testbed.Environment
	honest  *honest
	slot    int // the second byte of the attacker's addresses
	answers *answers
	closers *[]func() error
}

// answers counts what the attacker tried and what the server answered.
type answers struct {
	mu       sync.Mutex // guards what follows
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

// atEnd keeps what is closed after the measurement.
func (t *Target) atEnd(f func() error) { *t.closers = append(*t.closers, f) }

// from returns the target for another attacker, who has other addresses.
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

// open connects from the attacker's n-th address and sends the beginning of a request. end closes
// the connection, and so does the end of ctx.
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

// accounts makes n accounts of the attacker. They are free.
func (t *Target) accounts(n int) []*xrpc.Account {
	all := make([]*xrpc.Account, n)
	for i := range all {
		all[i] = Must(t.env.Account(p256))
	}
	return all
}

// tokenLife is how long tokens are valid that an attacker uses again and again.
const tokenLife = 30 * time.Minute

// tokens makes a token of each account for a method. A query's or stream's token can be used again.
func (t *Target) tokens(accounts []*xrpc.Account, method string) []string {
	tokens := make([]string, len(accounts))
	for i, who := range accounts {
		tokens[i] = Must(who.TokenFor(t.Audience, syntax.NSID(method), tokenLife))
	}
	return tokens
}

// Serials of accounts: which curve their keys are on.
const (
	k256 = 0
	p256 = 1
)

// once sends a call and counts it. The error is the server's refusal, or that of the connection.
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

// send makes one HTTP request and counts its answer, which it reads up to 64 KiB. token may be "".
// headers are names and values.
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
	content, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // the attacker does not need it whole
	_ = resp.Body.Close()
	return resp.StatusCode, content
}

// forge makes a token that nobody signed.
func forge(issuer syntax.DID, audience, method string) string {
	now := time.Now().Unix()
	claims, _ := json.Marshal(map[string]any{ // it never fails
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

// convo makes a convo of the attacker's accounts. The first creates it.
func (t *Target) convo(ctx context.Context, c *xrpc.Client, members []*xrpc.Account) (id string, group []byte,
	err error) {
	return testbed.NewConvo(ctx, c, members[0], testbed.DIDsOf(members[1:]), nil)
}

func createCall(group []byte, others []syntax.DID) xrpc.Call {
	return xrpc.CreateCall(group, mlsclient.SuiteX25519, others, &mlsclient.Staged{Epoch: 1}, xrpc.NewKey())
}

// header is the beginning of a request, up to the headers that say how its body comes.
func (t *Target) header(verb, method, token string) string {
	return fmt.Sprintf("%s /xrpc/%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: "+
		"application/json\r\n", verb, method, t.Addr, token)
}
