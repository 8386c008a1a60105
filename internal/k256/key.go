// Package k256 verifies ECDSA signatures on secp256k1 (K-256) by keys that sign often.
//
// The accounts of a chat sign every request. Verifying those signatures was half of the server's
// cost of a message. Precomputed multiples of a key halve that cost.
//
// Points and scalars, and their complete formulas, come from the library that indigo verifies with.
// Complete formulas have no exceptional points. This package decides only in which order they run.
// That order is not constant in time: a verifier works with public values only.
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

// Key is a public key with its precomputed multiples, about 7 KiB. It is safe for concurrent use.
type Key struct{ multiples *multiples }

// NewKey computes the multiples of a public key. compressed is the point in its compressed form of
// 33 bytes (SEC 1, section 2.3.3). The computation costs as much as verifying one signature.
func NewKey(compressed []byte) (*Key, error) {
	point, err := secp256k1.NewIdentityPoint().SetCompressedBytes(compressed)
	if err != nil {
		return nil, fmt.Errorf("k256: %w", err)
	}
	return &Key{multiplesOf(point, keyWidth)}, nil
}

// HashAndVerify checks the signature of content's SHA-256. The signature is r and s, 32 bytes each.
// s is at most half of the group's order, as AT Protocol requires
// (https://atproto.com/specs/cryptography). The error is atcrypto.ErrInvalidSignature.
func (k *Key) HashAndVerify(content, signature []byte) error {
	hash := sha256.Sum256(content)
	return k.verify(&hash, signature)
}

// verify checks the signature of hash by the steps of SEC 1, section 4.1.4.
func (k *Key) verify(hash *[sha256.Size]byte, signature []byte) error {
	r, s, err := secec.ParseCompactSignature(signature) // refuses 0 and numbers >= the order
	if err != nil || s.IsGreaterThanHalfN() == 1 {
		return atcrypto.ErrInvalidSignature
	}
	e, _ := secp256k1.NewScalarFromBytes(hash)
	inverse, err := inverseOf(s)
	if err != nil {
		return atcrypto.ErrInvalidSignature
	}
	sum := k.combine(e.Multiply(e, inverse), inverse.Multiply(inverse, r))
	x, err := sum.XBytes()
	if err != nil { // the point at infinity has no x
		return atcrypto.ErrInvalidSignature
	}
	if v, _ := secp256k1.NewScalarFromBytes((*[secp256k1.ScalarSize]byte)(x)); v.Equal(r) != 1 {
		return atcrypto.ErrInvalidSignature
	}
	return nil
}

// combine returns u1 times the base point plus u2 times the key.
func (k *Key) combine(u1, u2 *secp256k1.Scalar) *secp256k1.Point {
	var d1, d2 digits
	d1.set(u1, baseWidth)
	d2.set(u2, keyWidth)
	base, sum := ofBase(), secp256k1.NewIdentityPoint()
	for column := columns - 1; column >= 0; column-- {
		sum.Double(sum)
		base.add(sum, &d1, column)
		k.multiples.add(sum, &d2, column)
	}
	return sum
}

// order is the order of the group (SEC 2, section 2.4.1).
var order, _ = new(big.Int).SetString("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141", 16)

// inverseOf returns 1/s, by Euclid's algorithm. s must not be 0. The library raises s to a power
// instead, which takes the same time for every s, but three times as long.
func inverseOf(s *secp256k1.Scalar) (*secp256k1.Scalar, error) {
	var n big.Int
	if n.ModInverse(n.SetBytes(s.Bytes()), order) == nil {
		return nil, errors.New("k256: 0 has no inverse")
	}
	var b [secp256k1.ScalarSize]byte
	n.FillBytes(b[:])
	return secp256k1.NewScalarFromCanonicalBytes(&b)
}
