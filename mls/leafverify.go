package mls

// verifyLeaf verifies a leaf's signature at its place in a group (§7.2).
func (c CipherSuite) verifyLeaf(l *leafNode, groupID []byte, index uint32) error {
	verify := c.verifier(l.signatureKey)
	if verify == nil {
		return refuseTree(ErrMalformed, "LeafNode.signature_key", "5.1.1", "not a public key of the cipher suite")
	}
	if !verify(signContent("LeafNodeTBS", l.tbsAt(groupID, index)), l.signature) {
		return refuseTree(ErrBadSignature, "LeafNode.signature", "7.2", "")
	}
	return nil
}

// tbsAt returns LeafNodeTBS (§7.2): a leaf made within a group is signed for its
// place in it.
func (l *leafNode) tbsAt(groupID []byte, index uint32) []byte {
	if l.source == leafFromKeyPackage {
		return l.tbs
	}
	tbs := make([]byte, 0, len(l.tbs)+len(groupID)+8)
	tbs = appendOpaque(append(tbs, l.tbs...), groupID)
	return append(tbs, byte(index>>24), byte(index>>16), byte(index>>8), byte(index))
}
