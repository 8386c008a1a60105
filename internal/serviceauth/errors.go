package serviceauth

import "errors"

// ErrMissing is returned when a request carries no Authorization at all
// (AuthMissing, status 401).
var ErrMissing = errors.New("serviceauth: no authorization")

// ErrUnavailable is returned when a token could not be judged, because the
// caller's DID document or the store of used tokens could not be reached
// (ServiceUnavailable, status 503). The token may well be good.
var ErrUnavailable = errors.New("serviceauth: cannot check the token now")

// ErrBusy is returned when the budget for looking up DID documents is spent
// (ServiceUnavailable or RateLimitExceeded with Retry-After). The token may well
// be good.
var ErrBusy = errors.New("serviceauth: too many identity look-ups")

// ErrIssuer is what a [Directory] returns for a DID that certainly has no usable
// signing key: it does not exist, was deleted, declares no #atproto key, or its
// document stands where this server will not go. Validate reports it as an
// [InvalidError].
var ErrIssuer = errors.New("serviceauth: issuer has no usable signing key")

// InvalidError says that a token is refused for good (InvalidToken, status 401;
// never ExpiredToken, which makes clients refresh their session). The remedy is
// a fresh token.
type InvalidError struct {
	// Reason is one of a fixed set of texts that repeat nothing of the token:
	// safe to send to the client and to use as a metric label.
	Reason string
	// Err is the cause, for the log only. May be nil.
	Err error
}

// Error includes the cause and is meant for the log.
func (e *InvalidError) Error() string {
	if e.Err != nil {
		return "serviceauth: invalid token: " + e.Reason + ": " + e.Err.Error()
	}
	return "serviceauth: invalid token: " + e.Reason
}

// Unwrap returns the cause.
func (e *InvalidError) Unwrap() error { return e.Err }

// invalid returns an InvalidError with reason and no cause.
func invalid(reason string) error { return &InvalidError{Reason: reason} }

// ErrReplayed is the [InvalidError] of a token that was used up before.
var ErrReplayed = invalid(reasonReplay)

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
	reasonKid       = "kid must be #atproto"
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
	reasonReplay    = "token was used before"
)
