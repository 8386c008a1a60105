package mls

import "strconv"

// leafNodeSource says how a LeafNode was made (RFC 9420 §7.2): for a KeyPackage, an Update or a
// commit.
type leafNodeSource uint8

const (
	leafFromKeyPackage leafNodeSource = 1
	leafFromUpdate     leafNodeSource = 2
	leafFromCommit     leafNodeSource = 3
)

// capabilities lists what a client supports (RFC 9420 §7.2).
type capabilities struct {
	versions     u16List
	cipherSuites u16List
	extensions   u16List
	proposals    u16List
	credentials  u16List
}

// leafNode is a LeafNode (RFC 9420 §7.2). All slices alias the input.
type leafNode struct {
	encryptionKey  []byte
	signatureKey   []byte
	credentialType CredentialType
	identity       []byte // identity of a basic credential
	capabilities   capabilities
	source         leafNodeSource
	notBefore      uint64 // seconds since the Unix epoch; leafFromKeyPackage only
	notAfter       uint64
	parentHash     []byte // leafFromCommit only
	extensions     Extensions
	tbs            []byte // LeafNodeTBS without group_id and leaf_index
	signature      []byte
	raw            []byte // the whole LeafNode
}

// leafNode reads a LeafNode.
func (r *reader) leafNode() (l leafNode) {
	prev := r.enter("LeafNode", "7.2")
	start := r.s
	l.encryptionKey = r.opaque("encryption_key")
	l.signatureKey = r.opaque("signature_key")
	l.credentialType, l.identity = r.credential()
	l.capabilities = r.capabilities()
	l.source = leafNodeSource(r.u8("leaf_node_source"))
	switch l.source {
	case leafFromKeyPackage:
		l.notBefore = r.u64("lifetime.not_before")
		l.notAfter = r.u64("lifetime.not_after")
	case leafFromUpdate:
	case leafFromCommit:
		l.parentHash = r.opaque("parent_hash")
	default:
		r.malformed("leaf_node_source", "unknown value "+strconv.Itoa(int(l.source)))
	}
	l.extensions = r.extensions("extensions")
	l.tbs = r.since(start)
	l.signature = r.opaque("signature")
	l.raw = r.since(start)
	if len(l.raw) > MaxKeyPackageSize {
		r.in.section = ""
		r.fail(ErrTooLarge, "", sizes(len(l.raw), MaxKeyPackageSize))
	}
	r.in = prev
	return l
}

// credential reads a Credential (§5.3). It refuses an unknown type, because nothing shows where
// such a credential ends. §13.5 allows no GREASE here.
func (r *reader) credential() (t CredentialType, identity []byte) {
	prev := r.enter("Credential", "5.3")
	t = CredentialType(r.u16("credential_type"))
	switch {
	case r.err != nil:
	case t == CredentialTypeBasic:
		identity = r.opaque("identity")
	case t == CredentialTypeX509:
		r.vector("certificates", func(r *reader) { r.opaque("cert_data") })
	default:
		r.fail(ErrUnsupported, "credential_type", "unknown value "+strconv.Itoa(int(t)))
	}
	r.in = prev
	return t, identity
}

func (r *reader) capabilities() (c capabilities) {
	prev := r.enter("Capabilities", "7.2")
	c.versions = r.u16s("versions")
	c.cipherSuites = r.u16s("cipher_suites")
	c.extensions = r.u16s("extensions")
	c.proposals = r.u16s("proposals")
	c.credentials = r.u16s("credentials")
	r.in = prev
	return c
}

// verifyLeaf checks a leaf's size, and its signature at its place in a group (§7.2).
func (c CipherSuite) verifyLeaf(l *leafNode, groupID []byte, index uint32) error {
	if err := checkSize("LeafNode", l.raw, c.Limits().KeyPackage); err != nil {
		return err
	}
	verify := c.verifier(l.signatureKey)
	if verify == nil {
		return refuseTree(ErrMalformed, "LeafNode.signature_key", "5.1.1", c.wrongSignatureKey(l.signatureKey))
	}
	if !verify(signContent("LeafNodeTBS", l.tbsAt(groupID, index)), l.signature) {
		return refuseTree(ErrBadSignature, "LeafNode.signature", "7.2", "")
	}
	return nil
}

// tbsAt returns LeafNodeTBS (§7.2). The signature of a leaf made for a group covers its place in
// that group.
func (l *leafNode) tbsAt(groupID []byte, index uint32) []byte {
	if l.source == leafFromKeyPackage {
		return l.tbs
	}
	tbs := make([]byte, 0, len(l.tbs)+len(groupID)+8)
	tbs = appendOpaque(append(tbs, l.tbs...), groupID)
	return append(tbs, byte(index>>24), byte(index>>16), byte(index>>8), byte(index))
}
