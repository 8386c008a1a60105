// Package verifier is what a client needs to check the log of a convo. It has the form of the log's
// leaves and heads, and a Verifier, which keeps what one device has seen and says in a sentence how
// a server has lied. It holds no code of the server. The server computes its leaves and heads with
// this package.
//
// docs/TRANSPARENCY.md says what a member can be sure of.
package verifier

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// Hash is a SHA-256.
type Hash = tlog.Hash

// Kinds of entries: the content types of RFC 9420 §6, and the entries of a reset.
const (
	Application = 1
	Proposal    = 2
	Commit      = 3
	Reset       = 9
)

// Entry is what a leaf says of an entry of the log.
type Entry struct {
	Seq   int64
	Kind  int
	Epoch int64     // from the entry's MLS header; for a commit, the epoch that it ends
	At    time.Time // createdAt, whole milliseconds
	Body  Hash      // SHA-256 of the ciphertext
	Tag   Hash      // stands for the sender: see TagOf
}

// Record is the text of a leaf. Every field has a line.
func (e Entry) Record() []byte {
	return fmt.Appendf(nil, "mlsd log entry\n%d\n%d\n%d\n%d\n%s\n%s\n",
		e.Seq, e.Kind, e.Epoch, e.At.UnixMilli(), hex.EncodeToString(e.Body[:]), hex.EncodeToString(e.Tag[:]))
}

// Leaf is the hash of a leaf (RFC 6962 §2.1).
func (e Entry) Leaf() Hash { return tlog.RecordHash(e.Record()) }

// BodyHash is the hash of a ciphertext.
func BodyHash(ciphertext []byte) Hash { return sha256.Sum256(ciphertext) }

// TagOf returns the tag that stands for a sender in the leaves of a convo. Without the salt nobody
// can say whose tag it is. When an account is erased, its salts are deleted and its tags stay.
func TagOf(salt []byte, did string) Hash {
	h := sha256.New()
	h.Write([]byte("mlsd log sender\n")) // a Hash returns no error
	h.Write(salt)
	h.Write([]byte(did))
	return Hash(h.Sum(nil))
}
