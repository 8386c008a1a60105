// Package k256 verifies ECDSA signatures on secp256k1 (K-256) by keys that sign often. The accounts of a chat sign each request, and
// half of what a message costs the server was to verify that. Multiples of a key, worked out once and kept, halve it.
//
// The arithmetic of the curve's points and scalars is the library's that indigo verifies with, and so are its complete formulas, which
// know no exceptional points. Here is only the order in which they are used, and that is not constant in time: all that a verifier
// works with is public.
package k256

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"gitlab.com/yawning/secp256k1-voi"
	"gitlab.com/yawning/secp256k1-voi/secec"
)

// Key is a public key with its multiples, about 7 KiB. It is safe for concurrent use.
type Key struct{ multiples *multiples }

// NewKey works out the multiples of a public key, given as a point in its compressed form of 33 bytes (SEC 1, section 2.3.3). It costs as much as
// verifying a signature.
func NewKey(compressed []byte) (*Key, error) {
	point, err := secp256k1.NewIdentityPoint().SetCompressedBytes(compressed)
	if err != nil {
		return nil, fmt.Errorf("k256: %w", err)
	}
	return &Key{multiplesOf(point, keyWidth)}, nil
}

// HashAndVerify checks the signature of content's SHA-256: r and s, of 32 bytes each, s at most half of the group's order, as AT
// Protocol asks (https://atproto.com/specs/cryptography). The error is atcrypto.ErrInvalidSignature. The steps are those of SEC 1, section 4.1.4.
func (k *Key) HashAndVerify(content, signature []byte) error {
	r, s, err := secec.ParseCompactSignature(signature) // neither is 0, nor as large as the order
	if err != nil || s.IsGreaterThanHalfN() == 1 {
		return atcrypto.ErrInvalidSignature
	}
	hash := sha256.Sum256(content)
	e, _ := secp256k1.NewScalarFromBytes(&hash)
	inverse, err := inverseOf(s)
	if err != nil {
		return atcrypto.ErrInvalidSignature
	}
	sum := k.combine(e.Multiply(e, inverse), inverse.Multiply(inverse, r))
	x, err := sum.XBytes()
	if err != nil { // there is none of the point at infinity
		return atcrypto.ErrInvalidSignature
	}
	if v, _ := secp256k1.NewScalarFromBytes((*[secp256k1.ScalarSize]byte)(x)); v.Equal(r) != 1 {
		return atcrypto.ErrInvalidSignature
	}
	return nil
}

// combine returns u1 times the base point and u2 times the key.
func (k *Key) combine(u1, u2 *secp256k1.Scalar) *secp256k1.Point {
	var d1, d2 digits
	d1.set(u1, baseWidth)
	d2.set(u2, keyWidth)
	base, sum := ofBase(), secp256k1.NewIdentityPoint()
	for column := columns - 1; column >= 0; column-- {
		sum.Double(sum) // of nothing, at first
		base.add(sum, &d1, column)
		k.multiples.add(sum, &d2, column)
	}
	return sum
}

// order is that of the group (SEC 2, section 2.4.1).
var order, _ = new(big.Int).SetString("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", 16)

// inverseOf returns 1/s, of an s that is not 0, by Euclid's algorithm: a third of the time of the library's power, which takes the same
// time for every s.
func inverseOf(s *secp256k1.Scalar) (*secp256k1.Scalar, error) {
	var n big.Int
	if n.ModInverse(n.SetBytes(s.Bytes()), order) == nil {
		return nil, errors.New("k256: 0 has no inverse")
	}
	var b [secp256k1.ScalarSize]byte
	n.FillBytes(b[:])
	return secp256k1.NewScalarFromCanonicalBytes(&b)
}
