package mls

// Framing
//
//	object          accepted as
//	PublicMessage   MLSMessage (00 01 00 01 …)
//	PrivateMessage  MLSMessage (00 01 00 02 …)
//	Welcome         MLSMessage (00 01 00 03 …)
//	GroupInfo       MLSMessage (00 01 00 04 00 01 …) or bare (00 01, cipher suite, …)
//	KeyPackage      MLSMessage (00 01 00 05 00 01 …) or bare (00 01, cipher suite, …)
//
// Clients send GroupInfo and KeyPackage in both forms. The first six bytes show the form. No input
// is valid in both forms. A bare object of cipher suite 4 or 5 begins with the same four bytes as a
// framed object, but the framed object continues with the inner version 00 01. In a bare object,
// the bytes 00 01 there would mean an empty group_id and an epoch of at least 2^56, or an empty
// init_key. This package refuses both.
//
// Groups
//
// The public messages of a group's members are enough to know its public state:
//
//	info, err := ParseGroupInfo(msg)      // as a member published it
//	tree, err := info.Tree()              // or ParseTree, if the tree was sent separately
//	group, err := info.Verify(tree)       // tree and signatures; Trust if verified before
//	commit, err := ParseCommit(msg)       // a PublicMessage
//	change, err := group.Apply(commit)    // who joins, leaves, changes keys
//	change, err := group.Propose(m)       // what a commit of a single proposal would change
//	err = change.Next.Matches(&nextInfo)  // the GroupInfo sent with the commit
//
// This package does not check what only members can check: confirmation_tag, membership_tag, the
// ciphertexts of a path, and PSKs. So members may refuse a commit that passes Apply.
//
// Rules
//
// Length prefixes must be minimal (§2.1.2). Nothing may follow the object. Unknown code points are
// accepted wherever §13.5 allows GREASE. A proposal of an unknown type is opaque (see opaque.go).
// No extension type may appear twice in a list (§13.4). Epochs above [MaxEpoch] and group ids above
// [MaxGroupIDSize] are valid MLS, but this package refuses them. Every parser takes linear time,
// does not recurse, and allocates at most a small multiple of its input.
//
// Results alias the bytes they were parsed from. Neither may be modified.
//
// Errors
//
// Every error is a [*ParseError]. Its text may be shown to the client. Under errors.Is it matches
// one of [ErrMalformed], [ErrUnsupported], [ErrTooLarge], [ErrExpired], [ErrLifetimeTooLong] and
// [ErrBadSignature].
