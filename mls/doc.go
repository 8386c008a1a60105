// Package mls reads the wire objects of RFC 9420 (Messaging Layer Security)
// that a delivery service can read without any secret: the clear header of a
// message or commit, the recipients of a Welcome, everything in a KeyPackage, both
// signatures included, and of a group the tree, the roster and what a commit
// sent in clear does to them.
//
// It holds no state and touches neither network nor database. It is written
// from the RFC on golang.org/x/crypto/cryptobyte, so that the server's verdict
// does not rest on the code that made the object.
//
// # Framing
//
//	object          accepted as
//	PublicMessage   MLSMessage (00 01 00 01 …)
//	PrivateMessage  MLSMessage (00 01 00 02 …)
//	Welcome         MLSMessage (00 01 00 03 …)
//	GroupInfo       MLSMessage (00 01 00 04 00 01 …) or bare (00 01, cipher suite, …)
//	KeyPackage      MLSMessage (00 01 00 05 00 01 …) or bare (00 01, cipher suite, …)
//
// Clients in the field send GroupInfo and KeyPackage either way. The first six
// bytes decide, and nothing can be read both ways: a bare object of cipher
// suite 4 or 5 begins with the same four bytes as a framed one, but the framed
// one goes on with the inner version 00 01. Read as bare, those two bytes would
// be an empty group_id and an epoch of at least 2^56, or an empty init_key;
// neither is acceptable here.
//
// # Groups
//
// A group is followed from outside by what its members say in clear:
//
//	info, err := ParseGroupInfo(msg)        // as a member published it
//	tree, err := info.Tree()                // or ParseTree, if it came apart
//	group, err := info.Verify(tree)         // tree, signatures; Trust if kept since
//	commit, err := ParseCommit(msg)         // a PublicMessage
//	change, err := group.Apply(commit)      // who joins, leaves, changes keys
//	err = change.Next.Matches(&nextInfo)  // the GroupInfo sent with the commit
//
// What only members can check stays unchecked: confirmation_tag and
// membership_tag, the ciphertexts of a path, PSKs. A commit that passes Apply may
// thus still be one that members refuse.
//
// # Rules
//
// Length prefixes must be minimal (§2.1.2), nothing may follow the object,
// unknown code points are tolerated wherever §13.5 allows GREASE, and no
// extension type may appear twice in a list (§13.4). Epochs above [MaxEpoch]
// and group ids above [MaxGroupIDSize] are valid MLS but refused. Every parser
// takes linear time, does not recurse and allocates at most a small multiple of
// its input.
//
// Results alias the bytes they were parsed from: neither may be modified.
//
// # Errors
//
// Every error is a [*ParseError], whose text may be shown to the client, and
// matches one of [ErrMalformed], [ErrUnsupported], [ErrTooLarge], [ErrExpired],
// [ErrLifetimeTooLong] and [ErrBadSignature] under errors.Is.
package mls

// Limits on the encoded size of each object, in bytes. They are applied before
// anything is parsed, with the exception that a PrivateMessage is held to
// MaxMessageSize first and, once its content type is known to be a handshake,
// to MaxCommitSize.
const (
	MaxKeyPackageSize = 4 << 10
	MaxCommitSize     = 1 << 20
	MaxWelcomeSize    = 1 << 20
	MaxGroupInfoSize  = 1 << 20
	MaxMessageSize    = 10 << 20
)

// Limits on parts that every member of a group must bear: a leaf stays in the
// tree, and a context is hashed for each signature. A leaf begins as part of a
// KeyPackage.
const (
	MaxLeafNodeSize          = MaxKeyPackageSize
	MaxContextExtensionsSize = 64 << 10
)

// MaxGroupIDSize is the longest group_id accepted, in bytes: 128 hexadecimal
// characters on the XRPC surface.
const MaxGroupIDSize = 64

// MaxEpoch is the highest epoch accepted: the largest integer that survives
// JSON (2^53-1). RFC 9420 itself has 64 bits.
const MaxEpoch = 1<<53 - 1
