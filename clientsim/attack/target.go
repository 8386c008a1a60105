package attack

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
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
	Audience string
	// Bystanders are honest operations that only this attack needs. Prepare adds them.
	Bystanders []Operation
	Leaves     int // number of leaves of a costly GroupInfo

	env     *testbed.Environment
	honest  *honest
	slot    int // the second byte of the attacker's addresses
	answers *answers
	closers *[]func() error
}

// answers counts what the server answered to the attacker.
type answers struct {
	mu       sync.Mutex    // guards byStatus
	byStatus map[int]int64 // 0 means that there was no answer
}

// answered counts an attempt by the status of its answer.
func (t *Target) answered(status int) {
	t.answers.mu.Lock()
	defer t.answers.mu.Unlock()
	t.answers.byStatus[status]++
}

// atEnd registers a function that is called after the measurement.
func (t *Target) atEnd(f func() error) { *t.closers = append(*t.closers, f) }

// address returns the n-th address of the attacker.
func (t *Target) address(n int) net.IP { return net.IPv4(127, 1, byte(t.slot), byte(1+n%250)) }

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

// client returns an XRPC client that connects from the attacker's n-th address.
func (t *Target) client(n int) *xrpc.Client { return t.clientFrom(t.address(n)) }

func (t *Target) clientFrom(ip net.IP) *xrpc.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: ip}, Timeout: connectLimit}
	transport := &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 512, DisableCompression: true}
	t.atEnd(func() error { transport.CloseIdleConnections(); return nil })
	return xrpc.NewClient(t.Base, t.Audience, transport, &xrpc.Stats{})
}

// clients returns clients at the attacker's first n addresses.
func (t *Target) clients(n int) []*xrpc.Client {
	all := make([]*xrpc.Client, n)
	for i := range all {
		all[i] = t.client(i)
	}
	return all
}

// accounts makes n accounts of the attacker. Accounts cost nothing.
func (t *Target) accounts(n int) []*xrpc.Account {
	all := make([]*xrpc.Account, n)
	for i := range all {
		all[i] = Must(t.env.Account(p256))
	}
	return all
}

// p256 is a serial of accounts. Serials decide the curve of their keys.
const p256 = 1

// once sends a call and counts it. The error is the server's refusal, or the error of the
// connection.
func (t *Target) once(ctx context.Context, c *xrpc.Client, who *xrpc.Account, call xrpc.Call) (int, error) {
	answer, err := c.Once(ctx, who, call)
	status := statusOf(answer, err)
	t.answered(status)
	return status, err
}

func statusOf(answer xrpc.Answer, err error) int {
	var named *xrpc.CallError
	if errors.As(err, &named) {
		return named.Status
	}
	return answer.Status
}

// get makes a query with a token and counts it. The attacker does not need the answer.
func (t *Target) get(ctx context.Context, c *xrpc.Client, query, token string) {
	req := Must(http.NewRequestWithContext(ctx, http.MethodGet, t.Base+"/xrpc/"+query, nil))
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.answered(0)
		return
	}
	t.answered(resp.StatusCode)
	_ = xrpc.Drain(resp)
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

// unknownDID makes a did:plc that no directory knows.
func unknownDID() syntax.DID {
	return syntax.DID("did:plc:" + strings.ToLower(rand.Text())[:24])
}

// serve serves handler at an address of this machine.
func serve(ip net.IP, handler http.HandlerFunc) (*xrpc.Site, error) {
	return xrpc.Serve(net.JoinHostPort(ip.String(), "0"), handler)
}
