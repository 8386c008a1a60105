package serviceauth

import (
	"encoding/base64"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxToken bounds a token, in bytes. One from a PDS has about 400.
	maxToken = 4096
	// maxJTI bounds a jti, in bytes.
	maxJTI = 256
	// signatureSize is r ‖ s of either curve, in bytes (RFC 7518 §3.4).
	signatureSize = 64
)

// token is one that is well formed. Nothing in it is to be believed before its
// claims were checked and its signature verified.
type token struct {
	alg       string
	claims    claims
	signed    string // header and claims as they were signed
	signature []byte // signatureSize bytes
}

// claims are the claims that decide. A sub is deliberately not among them, and
// neither is anything else that could name a caller besides iss.
type claims struct {
	iss           syntax.DID
	aud, lxm, jti string
	iat, nbf, exp int64 // Unix seconds; nbf is 0 when absent
}

// rawHeader is the JOSE header (RFC 7515 §4). Keys and key locations in it (jwk,
// jku, x5c …) are never read.
type rawHeader struct {
	Alg  string         `json:"alg"`
	Typ  *string        `json:"typ"`
	Kid  *string        `json:"kid"`
	Crit jsontext.Value `json:"crit"`
}

// rawClaims is the claims set as JSON has it (RFC 7519 §4.1, and lxm of AT
// Protocol). An aud that is an array is refused: several audiences would be
// several services, each able to replay the token to the others. Times are whole
// seconds: no issuer sends fractions.
type rawClaims struct {
	Iss string `json:"iss"`
	Aud string `json:"aud"`
	Lxm string `json:"lxm"`
	Jti string `json:"jti"`
	Iat *int64 `json:"iat"`
	Nbf *int64 `json:"nbf"`
	Exp *int64 `json:"exp"`
}

// bearer returns the token of an Authorization header (RFC 6750 §2.1).
func bearer(authorization string) (string, error) {
	if authorization == "" {
		return "", ErrMissing
	}
	scheme, raw, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", invalid(reasonScheme)
	}
	raw = strings.Trim(raw, " ")
	if len(raw) > maxToken {
		return "", invalid(reasonSize)
	}
	return raw, nil
}

// parseToken reads a compact JWS and refuses whatever two readers might read in
// two ways: duplicate names, other spellings of a name, trailing data, loose
// base64. It checks the header in full, and of the claims only their form.
func parseToken(raw string) (token, error) {
	if len(raw) > maxToken {
		return token{}, invalid(reasonSize)
	}
	head, rest, ok1 := strings.Cut(raw, ".")
	body, sig, ok2 := strings.Cut(rest, ".")
	if !ok1 || !ok2 || head == "" || body == "" || sig == "" || strings.Contains(sig, ".") {
		return token{}, invalid(reasonForm)
	}
	var parts [3][]byte
	for i, s := range []string{head, body, sig} {
		b, err := decodeBase64URL(s)
		if err != nil {
			return token{}, err
		}
		parts[i] = b
	}
	alg, err := parseHeader(parts[0])
	if err != nil {
		return token{}, err
	}
	c, err := parseClaims(parts[1])
	if err != nil {
		return token{}, err
	}
	if len(parts[2]) != signatureSize {
		return token{}, invalid(reasonSignature)
	}
	return token{alg: alg, claims: c, signed: raw[:len(head)+1+len(body)], signature: parts[2]}, nil
}

// decodeBase64URL is strict: no padding, no loose bits at the end, and no line
// breaks, which encoding/base64 skips even in strict mode.
func decodeBase64URL(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, invalid(reasonBase64)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, &InvalidError{Reason: reasonBase64, Err: err}
	}
	return b, nil
}

// parseHeader returns the alg of a header that belongs to a service-auth token.
func parseHeader(b []byte) (string, error) {
	var h rawHeader
	if err := json.Unmarshal(b, &h); err != nil {
		return "", &InvalidError{Reason: reasonHeader, Err: err}
	}
	switch {
	case h.Alg != algES256 && h.Alg != algES256K:
		return "", invalid(reasonAlg)
	case h.Typ != nil && foreignType(*h.Typ):
		return "", invalid(reasonTyp)
	case h.Kid != nil && *h.Kid != "#atproto":
		return "", invalid(reasonKid)
	case h.Crit != nil:
		return "", invalid(reasonCrit)
	}
	return h.Alg, nil
}

// foreignType reports whether typ names an OAuth or session token, which is
// signed for other ends and must not pass for service auth. The prefix
// application/ may be left out and case does not matter (RFC 7515 §4.1.9).
func foreignType(typ string) bool {
	typ, _, _ = strings.Cut(strings.ToLower(typ), ";")
	typ = strings.TrimPrefix(strings.TrimSpace(typ), "application/")
	return typ == "at+jwt" || typ == "refresh+jwt" || typ == "dpop+jwt"
}
