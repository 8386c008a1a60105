package sessions

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/internal/serviceauth"
)

// A token is a prefix, which says its kind and the version of its form, and base64url of
//
//	key  id  serial  issued  expires  device  did  mac
//	4    16  4       8       8        32      …    32   bytes, integers big-endian, times in Unix seconds
//
// The mac is the HMAC-SHA256 of the prefix and of all fields before the mac. So a refresh token
// cannot be used as a bearer, or a bearer as a refresh token.
const (
	bearerPrefix  = "mlss1_"
	refreshPrefix = "mlsr1_"
	// maxToken is the largest size of a token, in bytes. A token of a did:plc has 188 bytes.
	maxToken  = 512
	deviceLen = sha256.Size
	fixedLen  = 4 + 16 + 4 + 8 + 8 + deviceLen
	// maxDID is the longest DID that fits into a token, in bytes. A did:web with the longest host
	// name has 261 bytes.
	maxDID = (maxToken-len(bearerPrefix))*3/4 - fixedLen - sha256.Size
)

// claims are the contents of a token.
type claims struct {
	key     int32
	id      uuid.UUID
	serial  int32
	issued  time.Time
	expires time.Time
	device  [deviceLen]byte
	did     syntax.DID
}

// The reasons why a session is refused. They repeat no part of the token.
const (
	reasonForm    = "session is malformed"
	reasonMAC     = "session is not one of this service, or too old: buy a new one with createSession"
	reasonExpired = "session has expired: refresh it before, or buy a new one with createSession"
	reasonEnded   = "session has ended: buy a new one with createSession"
	reasonKey     = "the account has another key now: buy a new session with createSession"
	reasonSigner  = "the account's key has been replaced: sign the token with the new one"
)

func invalid(reason string) error { return &serviceauth.InvalidError{Reason: reason} }

// sign returns a token with the claims c. prefix says its kind.
func (c *claims) sign(prefix string, key *macKey) string {
	b := make([]byte, 0, fixedLen+len(c.did)+sha256.Size)
	b = binary.BigEndian.AppendUint32(b, uint32(c.key))
	b = append(b, c.id[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(c.serial))
	b = binary.BigEndian.AppendUint64(b, uint64(c.issued.Unix()))
	b = binary.BigEndian.AppendUint64(b, uint64(c.expires.Unix()))
	b = append(b, c.device[:]...)
	b = append(b, c.did...)
	return prefix + tokenEncoding.EncodeToString(append(b, key.mac(prefix, b)...))
}

var tokenEncoding = base64.RawURLEncoding.Strict() // Strict makes a copy each time

// parse reads a token of the kind that prefix says. It checks the mac with the key that keyOf
// returns for the token's key number. keyOf returns nil if there is no such key. parse uses no
// other field of the token before this check.
func parse(prefix, token string, keyOf func(int32) *macKey) (c claims, err error) {
	text, ok := strings.CutPrefix(token, prefix)
	if !ok || len(token) > maxToken {
		return c, invalid(reasonForm)
	}
	b, err := tokenEncoding.DecodeString(text)
	if err != nil || len(b) <= fixedLen+sha256.Size {
		return c, invalid(reasonForm)
	}
	content, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	c.key = int32(binary.BigEndian.Uint32(content))
	key := keyOf(c.key)
	if key == nil || !hmac.Equal(sum, key.mac(prefix, content)) {
		return claims{}, invalid(reasonMAC)
	}
	content = content[4:]
	content = content[copy(c.id[:], content):]
	c.serial = int32(binary.BigEndian.Uint32(content))
	c.issued = time.Unix(int64(binary.BigEndian.Uint64(content[4:])), 0)
	c.expires = time.Unix(int64(binary.BigEndian.Uint64(content[12:])), 0)
	content = content[20:]
	content = content[copy(c.device[:], content):]
	c.did = syntax.DID(content)
	return c, nil
}

func (c *claims) session() Session {
	return Session{ID: c.id, DID: c.did, Device: hex.EncodeToString(c.device[:]), Expires: c.expires}
}

// parseDevice reads the id of a device: the SHA-256 of its signature key.
func parseDevice(text string) (d [deviceLen]byte, ok bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != deviceLen || strings.ToLower(text) != text {
		return d, false
	}
	return [deviceLen]byte(b), true
}
