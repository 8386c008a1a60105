// Package authtest makes callers for tests. Its identities sign valid and invalid service-auth
// tokens. It also has a directory and a replay store in memory. It is for tests only.
package authtest

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Identity is a caller with its signing key.
type Identity struct {
	DID syntax.DID
	Key atcrypto.PrivateKey
}

// NewIdentity returns a caller with a made-up did:plc and a new K-256 key, the kind of key of most
// accounts.
func NewIdentity(tb testing.TB) *Identity {
	tb.Helper()
	return &Identity{DID: newDID(), Key: K256(tb)}
}

// NewP256Identity returns a caller with a P-256 key.
func NewP256Identity(tb testing.TB) *Identity {
	tb.Helper()
	return &Identity{DID: newDID(), Key: P256(tb)}
}

// K256 returns a new K-256 key.
func K256(tb testing.TB) atcrypto.PrivateKey {
	tb.Helper()
	key, err := atcrypto.GeneratePrivateKeyK256()
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// P256 returns a new P-256 key.
func P256(tb testing.TB) atcrypto.PrivateKey {
	tb.Helper()
	key, err := atcrypto.GeneratePrivateKeyP256()
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// PublicKey returns the key that a directory has for i.
func (i *Identity) PublicKey(tb testing.TB) atcrypto.PublicKey {
	tb.Helper()
	key, err := i.Key.PublicKey()
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// Change alters a token before it is signed. A nil value removes a member.
type Change struct {
	Header, Claims map[string]any
}

// Header is a Change of one header member.
func Header(name string, value any) Change { return Change{Header: map[string]any{name: value}} }

// Claim is a Change of one claim.
func Claim(name string, value any) Change { return Change{Claims: map[string]any{name: value}} }

// Token returns a token of i for the method lxm of the service aud. It is issued at the given time,
// is valid for a minute and has a new jti. Then changes are made to it.
func (i *Identity) Token(tb testing.TB, aud, lxm string, at time.Time, changes ...Change) string {
	tb.Helper()
	header := map[string]any{"typ": "JWT", "alg": alg(i.Key)}
	claims := map[string]any{
		"iss": i.DID, "aud": aud, "lxm": lxm, "jti": rand.Text(),
		"iat": at.Unix(), "exp": at.Add(time.Minute).Unix(),
	}
	for _, c := range changes {
		maps.Copy(header, c.Header)
		maps.Copy(claims, c.Claims)
	}
	return Sign(tb, i.Key, encode(tb, header), encode(tb, claims))
}

// Authorization returns the value of the Authorization header with a token made by Token.
func (i *Identity) Authorization(tb testing.TB, aud, lxm string, at time.Time, changes ...Change) string {
	tb.Helper()
	return "Bearer " + i.Token(tb, aud, lxm, at, changes...)
}

// Sign returns a compact JWS over any two texts, JSON or not.
func Sign(tb testing.TB, key atcrypto.PrivateKey, header, claims string) string {
	tb.Helper()
	enc := base64.RawURLEncoding
	signed := enc.EncodeToString([]byte(header)) + "." + enc.EncodeToString([]byte(claims))
	sig, err := key.HashAndSign([]byte(signed))
	if err != nil {
		tb.Fatal(err)
	}
	return signed + "." + enc.EncodeToString(sig)
}

// encode returns m as JSON, without the members that are nil.
func encode(tb testing.TB, m map[string]any) string {
	tb.Helper()
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	b, err := json.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

func alg(key atcrypto.PrivateKey) string {
	if _, ok := key.(*atcrypto.PrivateKeyP256); ok {
		return "ES256"
	}
	return "ES256K"
}

func newDID() syntax.DID {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return syntax.DID("did:plc:" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:])))
}
