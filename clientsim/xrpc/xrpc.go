// Package xrpc calls the server: accounts and their tokens, a call for each method, the retry rule,
// and the events of both streams.
package xrpc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// Call is one request as a phone journals it. A retry sends exactly these bytes with a new token.
type Call struct {
	Method syntax.NSID `json:"method"`
	// Body is a procedure's input: JSON, unless Type says otherwise. A query has none.
	Body  []byte     `json:"body,omitempty"`
	Type  string     `json:"type,omitempty"`
	Query url.Values `json:"query,omitempty"`
	// Key is the idempotency key within Body or Query, or "". It is unique within Convo, if the method
	// names a convo.
	Key   string `json:"key,omitempty"`
	Convo string `json:"convo,omitempty"`
}

// Answer is a 2xx answer, byte for byte.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Replayed reports whether the server marked this answer as a replay.
func (a Answer) Replayed() bool { return a.Header.Get("X-Idempotency-Replay") == "true" }

// CallError is an answer that is not 2xx.
type CallError struct {
	Method  syntax.NSID
	Status  int
	Name    string
	Message string
	Header  http.Header
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", e.Method, e.Status, e.Name, e.Message)
}

// CurrentEpoch reads the epoch from an EpochMismatch's message. A PDS forwards only name and
// message, so the epoch must be in the message.
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
	Base     string // without a trailing slash
	Audience string // the server's service DID
	HTTP     *http.Client
	Stats    *Stats
	// Limit is how long Do may retry. 0 means CallTimeout.
	Limit time.Duration
	// Clock is the server's clock, by which tokens are made. nil means that the clock is right.
	Clock Clock
}

// Clock is the clock of a server.
type Clock interface {
	Ahead() time.Duration // by how much the clock is wrong; positive if it is fast
	Right() bool          // the clock is right, and has been for longer than a token lives
}

// AttemptLimit is the longest that one attempt may take.
const AttemptLimit = 15 * time.Second

// NewClient makes a client whose requests go through transport.
func NewClient(base, audience string, transport http.RoundTripper, stats *Stats) *Client {
	return &Client{
		Base: strings.TrimSuffix(base, "/"), Audience: audience, Stats: stats,
		HTTP: &http.Client{
			Transport: transport,
			Timeout:   AttemptLimit,
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
	}
}

// Token signs a token for one call of one method, by the server's clock.
func (c *Client) Token(who *Account, method syntax.NSID) (string, error) {
	if c.Clock == nil {
		return who.Token(c.Audience, method)
	}
	return who.tokenAt(time.Now().Add(c.Clock.Ahead()), c.Audience, method)
}

// ClockWrong reports whether err can come from the server's wrong clock: its token was made before
// the clock moved, or has expired by the clock of the database, which remembers used tokens. The
// request was not done, and can be sent again with another token.
func (c *Client) ClockWrong(err error) bool {
	var named *CallError
	return c.Clock != nil && errors.As(err, &named) && named.Status == http.StatusUnauthorized && !c.Clock.Right()
}

// Once sends a call once, with a new token. The error is a *CallError if the server answered. After
// any other error the outcome is unknown.
func (c *Client) Once(ctx context.Context, who *Account, call Call) (_ Answer, err error) {
	defer Catch(&err)
	token := Must(c.Token(who, call.Method))
	address := c.Base + "/xrpc/" + call.Method.String()
	verb := http.MethodPost
	if call.Body == nil {
		verb = http.MethodGet
	}
	if call.Query != nil {
		address += "?" + call.Query.Encode()
	}
	ctx = WithCallInfo(ctx, CallInfo{Call: call, Who: who, Audience: c.Audience})
	req, err := http.NewRequestWithContext(ctx, verb, address, bytes.NewReader(call.Body))
	Check(errs.Wrap(err, "%s", call.Method))
	req.Header.Set("Authorization", "Bearer "+token)
	if call.Body != nil {
		req.Header.Set("Content-Type", cmp.Or(call.Type, "application/json"))
	}
	resp, err := c.HTTP.Do(req)
	Check(errs.Wrap(err, "%s", call.Method))
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	Check(errs.Wrap(err, "%s", call.Method))
	if resp.StatusCode/100 != 2 {
		return Answer{}, ReadError(call.Method, resp, body)
	}
	answer := Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}
	if answer.Replayed() {
		c.Stats.Replays.Add(1)
	}
	return answer, nil
}

// ReadError makes a CallError of an answer that is not 2xx.
func ReadError(method syntax.NSID, resp *http.Response, body []byte) *CallError {
	var named struct{ Error, Message string }
	if err := json.Unmarshal(body, &named); err != nil || named.Error == "" {
		named.Error, named.Message = "not an XRPC error", string(body[:min(len(body), 200)])
	}
	return &CallError{Method: method, Status: resp.StatusCode, Name: named.Error, Message: named.Message,
		Header: resp.Header}
}

// Drain reads the rest of an answer and closes it, so that its connection can be used again.
func Drain(resp *http.Response) error {
	_, err := io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// CallInfo is what the transports need to know about a request besides its HTTP form.
type CallInfo struct {
	Call     Call
	Who      *Account // nil means the account that made the token
	Audience string
}

type callInfoKey struct{}

// WithCallInfo puts a CallInfo into a request's context.
func WithCallInfo(ctx context.Context, t CallInfo) context.Context {
	return context.WithValue(ctx, callInfoKey{}, t)
}

// CallInfoFrom returns the CallInfo in a request's context.
func CallInfoFrom(ctx context.Context) (CallInfo, bool) {
	t, ok := ctx.Value(callInfoKey{}).(CallInfo)
	return t, ok
}

// Stats counts what happened on the wire and on the phones.
type Stats struct {
	Sent      atomic.Int64 // application messages acknowledged
	Delivered atomic.Int64 // application messages decrypted by a recipient
	Retried   atomic.Int64 // attempts beyond a call's first
	Replays   atomic.Int64 // answers that were replays
	Verified  atomic.Int64 // parts of logs that were compared with signed heads
	WentBack  atomic.Int64 // times that a phone heard that the server went back
}
