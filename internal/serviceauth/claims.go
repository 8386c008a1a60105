package serviceauth

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/go-json-experiment/json"
)

const (
	// maxLifetime is the longest allowed time from iat to exp. A PDS issues 60 s
	// by default and 1 h at most.
	maxLifetime = time.Hour
	// clockSkew is how far a PDS's clock may run ahead of ours.
	clockSkew = 30 * time.Second
	// expiryLeeway is how far a PDS's clock may lag behind ours, and how long a
	// token may travel after its exp.
	expiryLeeway = 5 * time.Second
)

// parseClaims reads a claims set and checks its form, but not whether it is
// meant for us and now: that is [claims.check].
func parseClaims(b []byte) (claims, error) {
	var r rawClaims
	if err := json.Unmarshal(b, &r); err != nil {
		return claims{}, &InvalidError{Reason: reasonClaims, Err: err}
	}
	iss, ok := parseIssuer(r.Iss)
	if !ok {
		return claims{}, invalid(reasonIss)
	}
	if r.Jti == "" || len(r.Jti) > maxJTI {
		return claims{}, invalid(reasonJti)
	}
	if !isTime(r.Iat) || !isTime(r.Exp) || r.Nbf != nil && !isTime(r.Nbf) {
		return claims{}, invalid(reasonTimes)
	}
	c := claims{iss: iss, aud: r.Aud, lxm: r.Lxm, jti: r.Jti, iat: *r.Iat, exp: *r.Exp}
	if r.Nbf != nil {
		c.nbf = *r.Nbf
	}
	return c, nil
}

// check says whether the claims allow a call of method nsid at now by the
// audiences of this server. It is cheap and runs for every request, also for
// a token that was verified before.
func (c *claims) check(audiences map[string]struct{}, nsid syntax.NSID, now time.Time) error {
	if _, ok := audiences[c.aud]; !ok {
		return invalid(reasonAud)
	}
	if c.lxm == "" || c.lxm != string(nsid) {
		return invalid(reasonLxm)
	}
	at := now.Unix()
	switch {
	case at >= c.exp+int64(expiryLeeway/time.Second):
		return invalid(reasonExpired)
	case c.iat > at+int64(clockSkew/time.Second), c.nbf > at+int64(clockSkew/time.Second):
		return invalid(reasonFuture)
	case c.exp <= c.iat, c.exp-c.iat > int64(maxLifetime/time.Second):
		// Measured from iat, so that a token made for ten years is refused in
		// its last hour too. With the check above, exp is at most maxLifetime +
		// clockSkew ahead.
		return invalid(reasonLifetime)
	}
	return nil
}

// expires is the time from which check refuses the token.
func (c *claims) expires() time.Time {
	return time.Unix(c.exp, 0).Add(expiryLeeway)
}

// isTime reports whether t is a sane Unix time: sums with it cannot overflow.
func isTime(t *int64) bool {
	return t != nil && *t > 0 && *t <= math.MaxInt32*int64(100)
}

// parseIssuer accepts the DIDs of accounts: a did:plc, or a did:web that is a
// bare hostname (https://atproto.com/specs/did). A fragment would name a service
// with a key of its own; services have no conversations. did:web with a port is
// for localhost only, and the directory decides whether it is for this server.
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
