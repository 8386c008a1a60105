// Package tombstone makes the names that stand in the place of the DID of an account that was
// erased. A tombstone is did:erased: and 32 hexadecimal digits. It resolves to nothing, so nobody
// can sign in its name.
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

// digits is the length of a tombstone behind its prefix.
const digits = 32

// Is reports whether did is a tombstone, or the name that [Hash] gives.
func Is(did syntax.DID) bool { return strings.HasPrefix(did.String(), Prefix) }

// Hash is the name under which it is remembered that the operator has blocked an account that was
// erased. Who knows a DID can find it. Nobody can read the DID from it but by trying DIDs.
func Hash(did syntax.DID) syntax.DID {
	sum := sha256.Sum256([]byte(did))
	return syntax.DID(Prefix + hex.EncodeToString(sum[:]))
}

// Person is an account that is being erased.
type Person struct {
	DID  syntax.DID
	Salt []byte // of the erasure; it is forgotten when the erasure ends
}

// NewSalt returns a random salt.
func NewSalt() []byte {
	salt := make([]byte, SaltSize)
	rand.Read(salt) // never fails
	return salt
}

// In is the person's tombstone in a convo. Those of one person in two convos cannot be linked once
// the salt is forgotten. Those of two persons in one convo differ.
func (p Person) In(convo uuid.UUID) syntax.DID { return p.of(convo[:]) }

// Anywhere is the person's tombstone outside convos.
func (p Person) Anywhere() syntax.DID { return p.of(nil) }

func (p Person) of(place []byte) syntax.DID {
	mac := hmac.New(sha256.New, p.Salt)
	mac.Write(place)
	return syntax.DID(Prefix + hex.EncodeToString(mac.Sum(nil))[:digits])
}

// Pattern is a regular expression of PostgreSQL that finds the person's DID in a text, and no longer
// DID that begins with it. A full stop can follow, at the end of a sentence.
func (p Person) Pattern() string {
	return regexp.QuoteMeta(p.DID.String()) + `(?=\.?([^a-zA-Z0-9._:%-]|$))`
}
