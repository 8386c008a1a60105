package serviceauth

import (
	"cmp"
	"encoding/base64"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mlsd/internal/k256"
)

const (
	// maxToken is the greatest length of a token, in bytes. A token from a PDS has about 400.
	maxToken = 4096
	// maxJTI is the greatest length of a jti, in bytes.
	maxJTI = 256
	// signatureSize is the size of r ‖ s of either curve, in bytes (RFC 7518 §3.4).
	signatureSize = 64
)

const (
	// maxLifetime bounds exp - iat. A PDS issues 60 s by default and 1 h at most.
	maxLifetime = time.Hour
	// clockSkew is how far a PDS's clock may be ahead of ours.
	clockSkew = 30 * time.Second
	// expiryLeeway allows for a PDS's slow clock, and for the time that the token is on its way.
	expiryLeeway = 5 * time.Second
)

// The algorithms of AT Protocol (https://atproto.com/specs/cryptography).
const (
	algES256  = "ES256"  // ECDSA on P-256 with SHA-256
	algES256K = "ES256K" // ECDSA on secp256k1 (K-256) with SHA-256
)

// token is a well-formed token. Do not trust it before its claims are checked and its signature is
// verified.
type token struct {
	alg       string
	claims    claims
	signed    string // header and claims as they were signed
	signature []byte // signatureSize bytes
}

// claims are the claims that decide. Only iss names a caller.
type claims struct {
	iss           syntax.DID
	aud, lxm, jti string
	iat, nbf, exp int64 // Unix seconds; nbf is 0 when absent
}

// rawHeader is the JOSE header (RFC 7515 §4). It has no fields for keys and locations of keys (jwk,
// jku, x5c …), so that these are never read.
type rawHeader struct {
	Alg  string         `json:"alg"`
	Typ  *string        `json:"typ"`
	Kid  *string        `json:"kid"`
	Crit jsontext.Value `json:"crit"`
}

// rawClaims is the claims set as JSON has it (RFC 7519 §4.1, and lxm of AT Protocol). aud cannot be
// an array, because each of several services could replay the token to the others. Times are whole
// seconds.
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
		if !ok { // scheme may be a token, which no error may quote
			scheme = ""
		}
		return "", invalid(reasonScheme, "the scheme is %s instead of Bearer", quoted(scheme))
	}
	raw = strings.Trim(raw, " ")
	if len(raw) > maxToken {
		return "", tooLong(raw)
	}
	return raw, nil
}

// parseToken parses a compact JWS, and checks its header and the form of its claims. It refuses
// everything that two parsers could read differently: duplicate names, other spellings of a name,
// trailing data, loose base64.
func parseToken(raw string) (token, error) {
	if len(raw) > maxToken {
		return token{}, tooLong(raw)
	}
	head, rest, ok1 := strings.Cut(raw, ".")
	body, sig, ok2 := strings.Cut(rest, ".")
	if !ok1 || !ok2 || head == "" || body == "" || sig == "" || strings.Contains(sig, ".") {
		return token{}, invalid(reasonForm, "the number of its parts is %d instead of 3, with a dot between them "+
			"and none empty",
			strings.Count(raw, ".")+1)
	}
	var parts [3][]byte
	for i, s := range []string{head, body, sig} {
		b, err := decodeBase64URL(s)
		if err != nil {
			return token{}, &InvalidError{Reason: reasonBase64, Err: err, Detail: "its " +
				[...]string{"header", "claims", "signature"}[i] + ": use - and _, and no padding, spaces or line breaks"}
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
	if n := len(parts[2]); n != signatureSize {
		return token{}, invalid(reasonSignature, "its length in bytes is %d instead of %d, r and s", n, signatureSize)
	}
	if highS(alg, parts[2]) {
		return token{}, invalid(reasonHighS, "")
	}
	return token{alg: alg, claims: c, signed: raw[:len(head)+1+len(body)], signature: parts[2]}, nil
}

var segmentEncoding = base64.RawURLEncoding.Strict() // a variable, because Strict makes a copy at each call

// decodeBase64URL is strict. It refuses padding, non-zero bits after the last byte, and line
// breaks, which encoding/base64 ignores even in strict mode.
func decodeBase64URL(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("a line break")
	}
	return segmentEncoding.DecodeString(s)
}

// accountKey is the name of the key in an account's DID document that signs its tokens, and the kid
// of a token without one (https://atproto.com/specs/xrpc#inter-service-authentication-jwt).
const accountKey = "atproto"

// parseHeader returns the alg of a header that belongs to a service-auth token.
func parseHeader(b []byte) (string, error) {
	var h rawHeader
	if err := json.Unmarshal(b, &h); err != nil {
		return "", malformed(reasonHeader, err, `{"typ":"JWT","alg":"ES256K"}`)
	}
	switch {
	case h.Alg != algES256 && h.Alg != algES256K:
		return "", invalid(reasonAlg, "it is %s", quoted(h.Alg))
	case h.Typ != nil && foreignType(*h.Typ):
		return "", invalid(reasonTyp, `%s instead of "JWT": send the token of getServiceAuth, not the session's`,
			quoted(*h.Typ))
	case h.Kid != nil && strings.TrimPrefix(*h.Kid, "#") != accountKey: // older tokens have the #
		return "", invalid(reasonKid, "it is %s: sign with the account's own key", quoted(*h.Kid))
	case h.Crit != nil:
		return "", invalid(reasonCrit, "leave it out")
	}
	return h.Alg, nil
}

// foreignType reports whether typ names an OAuth or session token, which is signed for another
// purpose. The prefix application/ is optional, and case does not matter (RFC 7515 §4.1.9).
func foreignType(typ string) bool {
	typ, _, _ = strings.Cut(strings.ToLower(typ), ";")
	typ = strings.TrimPrefix(strings.TrimSpace(typ), "application/")
	return typ == "at+jwt" || typ == "refresh+jwt" || typ == "dpop+jwt"
}

// parseClaims parses a claims set and checks its form, but not its meaning: see [claims.check].
func parseClaims(b []byte) (claims, error) {
	var r rawClaims
	if err := json.Unmarshal(b, &r); err != nil {
		return claims{}, malformed(reasonClaims, err,
			`{"iss":DID,"aud":DID,"lxm":method,"jti":text,"iat":whole seconds,"exp":whole seconds}`)
	}
	iss, ok := parseIssuer(r.Iss)
	if !ok {
		return claims{}, invalid(reasonIss, "it is %s", quoted(r.Iss))
	}
	if r.Jti == "" || len(r.Jti) > maxJTI {
		return claims{}, invalid(reasonJti, "it has %d: send 16 random bytes as text, new ones in each token", len(r.Jti))
	}
	if !isTime(r.Iat) || !isTime(r.Exp) || r.Nbf != nil && !isTime(r.Nbf) {
		return claims{}, invalid(reasonTimes, "of Unix time: iat is %s, nbf %s, exp %s", number(r.Iat), number(r.Nbf),
			number(r.Exp))
	}
	c := claims{iss: iss, aud: r.Aud, lxm: r.Lxm, jti: r.Jti, iat: *r.Iat, exp: *r.Exp}
	if r.Nbf != nil {
		c.nbf = *r.Nbf
	}
	return c, nil
}

// check checks whether the claims allow a call of method nsid at now. It runs for every request,
// even if the token was verified before.
func (c *claims) check(audiences map[string]struct{}, nsid syntax.NSID, now time.Time) error {
	if _, ok := audiences[c.aud]; !ok {
		accepted := strings.Join(slices.Sorted(maps.Keys(audiences)), " or ")
		return invalid(reasonAud, "%s instead of %s", quoted(c.aud), accepted)
	}
	if c.lxm == "" || c.lxm != string(nsid) {
		return invalid(reasonLxm, "%s instead of %q: get a token for this method", quoted(c.lxm), nsid)
	}
	at := now.Unix()
	switch {
	case at >= c.exp+int64(expiryLeeway/time.Second):
		return invalid(reasonExpired, "%s: get a new one, and if it is new, set the clock that it was made by", c.times(now))
	case c.iat > at+int64(clockSkew/time.Second), c.nbf > at+int64(clockSkew/time.Second):
		return invalid(reasonFuture, "%s: set the clock that it was made by", c.times(now))
	case c.exp <= c.iat, c.exp-c.iat > int64(maxLifetime/time.Second):
		// So a token made for ten years is refused even in its last hour. Together with the check above,
		// exp is at most maxLifetime + clockSkew ahead.
		return invalid(reasonLifetime, "%s", c.times(now))
	}
	return nil
}

// times names the times of the token and the server's time.
func (c *claims) times(now time.Time) string {
	show := func(seconds int64) string { return time.Unix(seconds, 0).UTC().Format(time.RFC3339) }
	text := "iat is " + show(c.iat) + ", exp " + show(c.exp)
	if c.nbf != 0 {
		text += ", nbf " + show(c.nbf)
	}
	return text + ", and the server's time " + show(now.Unix())
}

// expires returns the time from which check refuses the token.
func (c *claims) expires() time.Time {
	return time.Unix(c.exp, 0).Add(expiryLeeway)
}

// isTime reports whether t is a plausible Unix time. Sums with such a time cannot overflow.
func isTime(t *int64) bool {
	return t != nil && *t > 0 && *t <= math.MaxInt32*int64(100)
}

// parseIssuer accepts the DIDs of accounts: a did:plc, or a did:web that is a bare hostname
// (https://atproto.com/specs/did). A fragment names a service, and services have no conversations.
// Only did:web:localhost may have a port; the directory decides whether this server allows that.
func parseIssuer(s string) (syntax.DID, bool) {
	if id, ok := strings.CutPrefix(s, "did:plc:"); ok {
		return syntax.DID(s), len(id) == 24 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") == ""
	}
	host, ok := strings.CutPrefix(s, "did:web:")
	if !ok {
		return "", false
	}
	if port, ok := strings.CutPrefix(host, "localhost%3A"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		return syntax.DID(s), err == nil && strconv.FormatUint(n, 10) == port
	}
	_, err := syntax.ParseHandle(host)
	return syntax.DID(s), err == nil && host == strings.ToLower(host)
}

// Half of the order of each curve's group, rounded down. This is the largest low s (SEC 2, sections
// 2.4.1 and 2.4.2).
const (
	halfOrderP256 = "\x7f\xff\xff\xff\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff" +
		"\xde\x73\x7d\x56\xd3\x8b\xcf\x42\x79\xdc\xe5\x61\x7e\x31\x92\xa8"
	halfOrderK256 = "\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
		"\x5d\x57\x6e\x73\x57\xa4\x50\x1d\xdf\xe9\x2f\x46\x68\x1b\x20\xa0"
)

// highS reports whether a signature has a high s, and so can never verify.
func highS(alg string, signature []byte) bool {
	half := halfOrderP256
	if alg == algES256K {
		half = halfOrderK256
	}
	return string(signature[signatureSize/2:]) > half
}

// verify checks alg and signature against key. The signature must have a low s, as AT Protocol
// requires. A high s would make a second token with the same claims.
func (t *token) verify(keys *k256.Keys, key atcrypto.PublicKey) error {
	var (
		alg    string
		verify = key.HashAndVerify
	)
	switch key := key.(type) {
	case *atcrypto.PublicKeyP256:
		alg = algES256
	case *atcrypto.PublicKeyK256:
		alg = algES256K
		verify = func(content, signature []byte) error { return keys.HashAndVerify(key, content, signature) }
	}
	if alg == "" || t.alg != alg {
		return invalid(reasonKey, "%s instead of %s", t.alg, cmp.Or(alg, "that of a key of P-256 or K-256"))
	}
	if err := verify([]byte(t.signed), t.signature); err != nil {
		return &InvalidError{Reason: reasonSignature, Err: err, Detail: "it is not of the #atproto key in the DID " +
			"document of " + t.claims.iss.String()}
	}
	return nil
}
