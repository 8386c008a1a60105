package serviceauth

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
)

// ErrMissing means that a request has no Authorization header (AuthMissing, status 401).
var ErrMissing = errors.New("serviceauth: no authorization")

// ErrUnavailable means that a token could not be checked: the caller's DID document or the store of
// used tokens could not be reached (ServiceUnavailable, status 503). The token may be valid.
var ErrUnavailable = errors.New("serviceauth: cannot check the token now")

// ErrBusy means that a limit of look-ups of DID documents is reached (ServiceUnavailable with
// Retry-After). The token may be valid.
var ErrBusy = errors.New("serviceauth: too many identity look-ups")

// ErrSpent is the [ErrBusy] of one address: either its tokens caused too many look-ups without a
// verified caller, or its sessions caused too many look-ups (RateLimitExceeded with Retry-After).
// Other addresses are not affected.
var ErrSpent = fmt.Errorf("%w from one address", ErrBusy)

// ErrOften is the [ErrBusy] of one account: its sessions caused too many look-ups
// (RateLimitExceeded with Retry-After).
var ErrOften = fmt.Errorf("%w of one account", ErrBusy)

// ErrRefresh is the [ErrBusy] of a token whose signature does not verify. Its issuer may have
// replaced the key, but the limit of look-ups after bad signatures is reached.
var ErrRefresh = fmt.Errorf("%w after bad signatures", ErrBusy)

// ErrHost means that the host of a did:web account failed to serve its DID document. The caller
// chose the host, so the caller is at fault. [ErrUnavailable] without ErrHost means that the PLC
// directory or our database failed. Validate reports ErrHost together with ErrUnavailable.
var ErrHost = errors.New("serviceauth: the host of the DID document failed")

// ErrIssuer means that a DID certainly has no usable signing key. The DID does not exist, was
// deleted, or declares no #atproto key, or its document is at an address that this server does not
// connect to. A [Directory] returns ErrIssuer, and Validate reports it as an [InvalidError].
var ErrIssuer = errors.New("serviceauth: issuer has no usable signing key")

// ErrClock is the [ErrUnavailable] of a token that is too early or too late by this node's clock,
// while this clock and the database's differ too much to tell.
var ErrClock = fmt.Errorf("%w: clocks differ", ErrUnavailable)

// ErrLate is the [ErrUnavailable] of a token that verified in time, and that is used only after the
// database has stopped remembering its use. The request waited for long, or the clocks differ. The
// token was not used before, so the same request can be sent with a new one.
var ErrLate = fmt.Errorf("%w: it expired before it was used", ErrUnavailable)

// InvalidError means that a token is refused and stays refused. The client needs a new token. The
// answer is InvalidToken, status 401. It is never ExpiredToken, which makes clients refresh their
// session.
type InvalidError struct {
	// Reason is one of a fixed set of texts. They repeat no part of the token, so they are safe to
	// send to the client and to use as a metric label.
	Reason string
	// Detail goes to the client after Reason. It may repeat a part of the client's own token, so it
	// must not be a metric label. It may be "".
	Detail string
	// Err is the cause, for the log only. It may be nil.
	Err error
}

// Error returns a text for the log. It includes the cause.
func (e *InvalidError) Error() string {
	if e.Err != nil {
		return "serviceauth: invalid token: " + e.Message() + ": " + e.Err.Error()
	}
	return "serviceauth: invalid token: " + e.Message()
}

// timing reports whether the token is refused because of its times and this server's clock.
func (e *InvalidError) timing() bool { return e.Reason == reasonExpired || e.Reason == reasonFuture }

// Message returns the text for the client.
func (e *InvalidError) Message() string {
	if e.Detail != "" {
		return e.Reason + ": " + e.Detail
	}
	return e.Reason
}

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }

// invalid returns an InvalidError without a cause. detail says what was received, what is expected,
// and what to do.
func invalid(reason, detail string, args ...any) error {
	return &InvalidError{Reason: reason, Detail: fmt.Sprintf(detail, args...)}
}

// malformed returns the error for a header or claims that cannot be read. Its message names the
// place, and the kind of value there.
func malformed(reason string, err error, want string) error {
	got := "it is not JSON of unique names"
	if wrong := new(json.SemanticError); errors.As(err, &wrong) && wrong.JSONKind != 0 {
		got = "its " + cmp.Or(wrong.JSONPointer.LastToken(), "JSON") + " is a " + wrong.JSONKind.String()
	}
	return &InvalidError{Reason: reason, Err: err, Detail: got + ", instead of " + want}
}

func tooLong(raw string) error {
	return invalid(reasonSize, "it has %d bytes, and at most %d are taken", len(raw), maxToken)
}

// quoted returns a text of the token in quotes. It cuts a long text. For an empty text it returns
// the word none.
func quoted(text string) string {
	const longest = 256 // longest part of the text that is repeated, in bytes
	switch {
	case text == "":
		return "none"
	case len(text) > longest:
		return strconv.QuoteToASCII(text[:longest]) + "…"
	}
	return strconv.QuoteToASCII(text)
}

// number returns the text of a number of the token, or the word none.
func number(n *int64) string {
	if n == nil {
		return "none"
	}
	return strconv.FormatInt(*n, 10)
}

// ErrReplayed is the [InvalidError] of a token that was already used.
var ErrReplayed = invalid(reasonReplay, "get a new one for each call of a procedure")

// The reasons of an InvalidError.
const (
	reasonScheme    = "authorization is not a Bearer token"
	reasonSize      = "token is too long"
	reasonForm      = "token is not a compact JWS"
	reasonBase64    = "token is not base64url"
	reasonHeader    = "token header is malformed"
	reasonClaims    = "token claims are malformed"
	reasonAlg       = "alg must be ES256 or ES256K"
	reasonTyp       = "typ is that of another kind of token"
	reasonKid       = "kid must be atproto"
	reasonCrit      = "crit is not supported"
	reasonIss       = "iss must be a did:plc or did:web account"
	reasonAud       = "aud is not this service"
	reasonLxm       = "lxm is not this method"
	reasonJti       = "jti must have 1 to 256 bytes"
	reasonTimes     = "exp and iat are required, in whole seconds"
	reasonExpired   = "token has expired"
	reasonLifetime  = "token must expire within 1 hour of iat"
	reasonFuture    = "iat or nbf is in the future"
	reasonIssuer    = "iss has no usable signing key"
	reasonKey       = "alg does not match the key of iss"
	reasonSignature = "signature does not verify"
	reasonHighS     = "signature is High-S: normalise it (replace s by n - s where s is above n/2), as AT Protocol " +
		"requires; Node and WebCrypto do not"
	reasonReplay = "token was used before"
)
