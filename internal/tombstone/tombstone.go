// Package tombstone makes tombstones: names that replace the DID of an erased account. A tombstone
// is did:erased: and 32 hexadecimal digits. It resolves to nothing, so nobody can sign in its name.
package tombstone

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// Prefix begins every tombstone.
const Prefix = "did:erased:"

// SaltSize is the size of a salt, in bytes.
const SaltSize = 32

// digits is the length of a tombstone after its prefix.
const digits = 32

// Is reports whether did is a tombstone, or a name that [Hash] returns.
func Is(did syntax.DID) bool { return strings.HasPrefix(did.String(), Prefix) }

// Hash returns the name under which the server remembers that the operator has blocked an erased
// account. Anybody who knows the DID can compute the name. Nobody can find the DID from the name,
// except by trying DIDs.
func Hash(did syntax.DID) syntax.DID {
	sum := sha256.Sum256([]byte(did))
	return syntax.DID(Prefix + hex.EncodeToString(sum[:]))
}

// Person is an account that is being erased.
type Person struct {
	DID  syntax.DID
	Salt []byte // salt of the erasure; forgotten when the erasure ends
}

// NewSalt returns a random salt.
func NewSalt() []byte {
	salt := make([]byte, SaltSize)
	rand.Read(salt) // never fails
	return salt
}

// In returns the person's tombstone in a convo. Once the salt is forgotten, nobody can link the
// tombstones of one person in two convos. The tombstones of two persons in one convo differ.
func (p Person) In(convo uuid.UUID) syntax.DID { return p.of(convo[:]) }

// Anywhere returns the person's tombstone outside convos.
func (p Person) Anywhere() syntax.DID { return p.of(nil) }

func (p Person) of(place []byte) syntax.DID {
	mac := hmac.New(sha256.New, p.Salt)
	mac.Write(place)
	return syntax.DID(Prefix + hex.EncodeToString(mac.Sum(nil))[:digits])
}

// Pattern returns a regular expression of PostgreSQL that finds the person's DID in a text, but not
// a longer DID that begins with it. A full stop may follow at the end of a sentence.
func (p Person) Pattern() string {
	return regexp.QuoteMeta(p.DID.String()) + `(?=\.?([^a-zA-Z0-9._:%-]|$))`
}
