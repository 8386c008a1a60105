package clientsim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Call is one request as it lies in a phone's journal: repeating it means
// repeating exactly this, with a fresh token around it.
type Call struct {
	Method syntax.NSID `json:"method"`
	// Body is a procedure's JSON; a query has none, and Query instead.
	Body  []byte     `json:"body,omitempty"`
	Query url.Values `json:"query,omitempty"`
	// Key is the idempotency key within Body or Query, or "". It is unique
	// within Convo, where the method names one.
	Key   string `json:"key,omitempty"`
	Convo string `json:"convo,omitempty"`
}

// Answer is a 2xx answer, byte for byte.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Replayed reports whether the server says that it had answered this before.
func (a Answer) Replayed() bool { return a.Header.Get("X-Idempotency-Replay") == "true" }

// expiredKey reports whether an answer or a refusal says that its key was used
// before, too long ago.
func expiredKey(h http.Header) bool { return h.Get("X-Idempotency-Expired") == "true" }

// CallError is an answer that is not 2xx.
type CallError struct {
	Method  syntax.NSID
	Status  int
	Name    string
	Message string
	Header  http.Header
	// Seq is, of an EpochMismatch, where the commit stands that won. A PDS does
	// not forward it.
	Seq int64
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", e.Method, e.Status, e.Name, e.Message)
}

// CurrentEpoch reads the epoch out of an EpochMismatch's message. A PDS
// forwards nothing but name and message, so it has to stand there.
func (e *CallError) CurrentEpoch() (uint64, bool) {
	_, after, ok := strings.Cut(e.Message, "currentEpoch=")
	if !ok {
		return 0, false
	}
	digits := after
	if i := strings.IndexFunc(after, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = after[:i]
	}
	epoch, err := strconv.ParseUint(digits, 10, 53)
	return epoch, err == nil
}

// Client talks XRPC to one server. It is safe for concurrent use.
type Client struct {
	base     string // without a trailing slash
	audience string // the server's service DID
	http     *http.Client
	stats    *Stats
}

// attemptLimit bounds one attempt: a phone gives up on a silent server and
// asks again.
const attemptLimit = 15 * time.Second

// NewClient makes a client whose requests go through transport.
func NewClient(base, audience string, transport http.RoundTripper, stats *Stats) *Client {
	return &Client{
		base: strings.TrimSuffix(base, "/"), audience: audience, stats: stats,
		http: &http.Client{
			Transport: transport,
			Timeout:   attemptLimit,
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
	}
}

// Once sends a call once, with a fresh token. The error is a *CallError if the
// server answered; any other error leaves the outcome unknown.
func (c *Client) Once(ctx context.Context, who *Account, call Call) (Answer, error) {
	token, err := who.Token(c.audience, call.Method)
	if err != nil {
		return Answer{}, err
	}
	address := c.base + "/xrpc/" + call.Method.String()
	verb := http.MethodPost
	if call.Body == nil {
		verb = http.MethodGet
		address += "?" + call.Query.Encode()
	}
	ctx = withTrip(ctx, trip{call: call, who: who, audience: c.audience})
	req, err := http.NewRequestWithContext(ctx, verb, address, bytes.NewReader(call.Body))
	if err != nil {
		return Answer{}, fmt.Errorf("%s: %w", call.Method, err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if call.Body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{}, fmt.Errorf("%s: %w", call.Method, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("%s: %w", call.Method, err)
	}
	if resp.StatusCode/100 != 2 {
		return Answer{}, readError(call.Method, resp, body)
	}
	answer := Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}
	if answer.Replayed() {
		c.stats.Replays.Add(1)
	}
	return answer, nil
}

func readError(method syntax.NSID, resp *http.Response, body []byte) *CallError {
	var named struct {
		Error, Message string
		Seq            int64
	}
	if err := json.Unmarshal(body, &named); err != nil || named.Error == "" {
		named.Error, named.Message = "not an XRPC error", string(body[:min(len(body), 200)])
	}
	return &CallError{Method: method, Status: resp.StatusCode, Name: named.Error, Message: named.Message, Header: resp.Header, Seq: named.Seq}
}
