package mls

// Limits on the encoded size of an object of any suite, in bytes. They apply before anything is
// parsed, with one exception: only parsing shows what a PublicMessage or a PrivateMessage holds.
// Most suites have lower limits: see [CipherSuite.Limits].
const (
	MaxKeyPackageSize = 20 << 10
	MaxProposalSize   = 1 << 20
	MaxCommitSize     = 3 << 20
	MaxWelcomeSize    = 3 << 20
	MaxGroupInfoSize  = 4 << 20
	MaxMessageSize    = 10 << 20
)

// maxHandshakeSize returns the limit on a message whose content is not application data.
func maxHandshakeSize(t ContentType) int {
	if t == ContentTypeProposal {
		return MaxProposalSize
	}
	return MaxCommitSize
}

// MaxContextExtensionsSize is the limit on the extensions of a GroupContext, in bytes. A context is
// hashed for each signature.
const MaxContextExtensionsSize = 64 << 10

// MaxGroupIDSize is the longest group_id accepted, in bytes: 128 hexadecimal characters in XRPC
// requests.
const MaxGroupIDSize = 64

// MaxEpoch is the highest epoch accepted: 2^53-1, the largest integer that every JSON parser reads
// exactly. Epochs of RFC 9420 have 64 bits.
const MaxEpoch = 1<<53 - 1

// Limits are limits on the encoded size of the objects of one suite, in bytes. A leaf has the limit
// of a KeyPackage, because it begins as a part of a KeyPackage and stays in the tree. GroupInfo is
// also the limit on a ratchet tree.
type Limits struct{ KeyPackage, Commit, Welcome, GroupInfo int }

// Limits returns the limits of the suite. The suites of RFC 9420 have 4 KiB for a KeyPackage, and 1
// MiB for everything else. A post-quantum suite has higher limits, because its keys and signatures
// are longer. Its limits grow by the extra bytes of:
//
//   - a KeyPackage: its own keys and signatures
//   - a Welcome: one KEM output for each of a thousand members
//   - a commit: one KEM output and one KeyPackage for each of a thousand members
//   - a GroupInfo: one leaf and one parent for each of a thousand members
//
// No limit exceeds the constants above, so a group with ML-DSA signatures can grow until its
// GroupInfo has 4 MiB. An unknown suite has the limits of RFC 9420.
func (c CipherSuite) Limits() Limits {
	const members = 1000
	l := Limits{KeyPackage: 4 << 10, Commit: 1 << 20, Welcome: 1 << 20, GroupInfo: 1 << 20}
	p := c.params()
	if p == nil {
		return l
	}
	longest := p521.keySize // the longest keys of RFC 9420; its signatures have at most six bytes more
	key, output := max(0, p.kem.keySize-longest), max(0, p.kem.outputSize-longest)
	identity := max(0, p.sign.keySize-longest) + max(0, p.sign.size-longest)
	keyPackage := 2*key + identity + max(0, p.sign.size-longest)
	return Limits{
		KeyPackage: min(l.KeyPackage+keyPackage, MaxKeyPackageSize),
		Commit:     min(l.Commit+members*(output+keyPackage), MaxCommitSize),
		Welcome:    min(l.Welcome+members*output, MaxWelcomeSize),
		GroupInfo:  min(l.GroupInfo+members*(2*key+identity), MaxGroupInfoSize),
	}
}
