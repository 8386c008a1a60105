package mls

// VerifySignatures verifies both signatures of a KeyPackage with the leaf's signature key: the
// leaf's own (RFC 9420 §7.2) and the KeyPackage's (§10).
//
// Errors: ErrUnsupported for a suite that the RFC does not define; ErrMalformed for a key that does
// not have the suite's form, or a leaf that was not made for a KeyPackage; ErrBadSignature.
func (k *KeyPackage) VerifySignatures() error {
	if !k.CipherSuite.Supported() {
		return k.refuse(ErrUnsupported, "cipher_suite", "10.1", k.CipherSuite.String())
	}
	if k.leaf.source != leafFromKeyPackage {
		return k.refuse(ErrMalformed, "LeafNode.leaf_node_source", "7.3", "not key_package")
	}
	verify := k.CipherSuite.verifier(k.SignatureKey)
	if verify == nil {
		return k.refuse(ErrMalformed, "LeafNode.signature_key", "5.1.1", k.CipherSuite.wrongSignatureKey(k.SignatureKey))
	}
	if !verify(signContent("LeafNodeTBS", k.leaf.tbs), k.leaf.signature) {
		return k.refuse(ErrBadSignature, "LeafNode.signature", "7.2", "")
	}
	if !verify(signContent("KeyPackageTBS", k.tbs), k.signature) {
		return k.refuse(ErrBadSignature, "signature", "10", "")
	}
	return nil
}

// signContent returns SignContent, the bytes that SignWithLabel signs (RFC 9420 §5.1.2). The
// content is passed in parts, so that it is copied only once.
func signContent(label string, content ...[]byte) []byte {
	const prefix = "MLS 1.0 "
	size := 0
	for _, part := range content {
		size += len(part)
	}
	out := make([]byte, 0, len(prefix)+len(label)+size+8)
	out = appendVarint(out, len(prefix)+len(label))
	out = append(out, prefix...)
	out = append(out, label...)
	out = appendVarint(out, size)
	for _, part := range content {
		out = append(out, part...)
	}
	return out
}

// refHash returns RefHash (RFC 9420 §5.2) with the suite's hash, or nil for an unknown suite.
func (c CipherSuite) refHash(label string, value []byte) []byte {
	h := c.newHash()
	if h == nil {
		return nil
	}
	head := appendVarint(nil, len(label))
	head = append(head, label...)
	head = appendVarint(head, len(value))
	h.Write(head)
	h.Write(value)
	return h.Sum(nil)
}

// appendVarint appends n as a minimal variable-size length (RFC 9420 §2.1.2). n must be below 2^30.
func appendVarint(b []byte, n int) []byte {
	switch {
	case n < 1<<6:
		return append(b, byte(n))
	case n < 1<<14:
		return append(b, 0x40|byte(n>>8), byte(n))
	}
	return append(b, 0x80|byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}
