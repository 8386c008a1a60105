package k256

import (
	"crypto/sha256"
	"math/big"

	"gitlab.com/yawning/secp256k1-voi"
)

// The reference is a third implementation of ECDSA verification, independent of the other two. It
// uses math/big only. It is slow and follows the textbook: SEC 1, sections 2.2.1 (the group law)
// and 4.1.4 (verification), and SEC 2, section 2.4.1 (the curve).

// number parses a number in hexadecimal.
func number(hex string) *big.Int {
	n, ok := new(big.Int).SetString(hex, 16)
	if !ok {
		panic(hex)
	}
	return n
}

var (
	refPrime = number("fffffffffffffffffffffffffffffffffffffffffffffffffffffffefffffc2f")
	refOrder = number("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141")
	refBase  = refPoint{
		number("79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"),
		number("483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8"),
	}
)

// refPoint is a point of the curve. The zero value is the point at infinity.
type refPoint struct{ x, y *big.Int }

// infinite reports whether p is the point at infinity.
func (p refPoint) infinite() bool { return p.x == nil }

// negate returns -p.
func (p refPoint) negate() refPoint {
	if p.infinite() {
		return p
	}
	return refPoint{p.x, new(big.Int).Mod(new(big.Int).Neg(p.y), refPrime)}
}

// add returns p + q.
func (p refPoint) add(q refPoint) refPoint {
	switch {
	case p.infinite():
		return q
	case q.infinite():
		return p
	}
	var slope, denominator big.Int
	if p.x.Cmp(q.x) == 0 {
		if p.y.Cmp(q.y) != 0 {
			return refPoint{} // q = -p; no point of this curve has y = 0
		}
		slope.Mul(big.NewInt(3), slope.Mul(p.x, p.x))
		denominator.Lsh(p.y, 1)
	} else {
		slope.Sub(q.y, p.y)
		denominator.Sub(q.x, p.x)
	}
	denominator.ModInverse(denominator.Mod(&denominator, refPrime), refPrime)
	slope.Mod(slope.Mul(&slope, &denominator), refPrime)
	x := new(big.Int).Mul(&slope, &slope)
	x.Mod(x.Sub(x.Sub(x, p.x), q.x), refPrime)
	y := new(big.Int).Sub(p.x, x)
	y.Mod(y.Sub(y.Mul(y, &slope), p.y), refPrime)
	return refPoint{x, y}
}

// timesBase returns n times the base point. It asks the library, which is fast. It makes keys and
// signatures only: no verdict of the reference rests on it.
func timesBase(n *big.Int) refPoint {
	p := secp256k1.NewIdentityPoint().ScalarBaseMult(scalarOf(n.Bytes()))
	if p.IsIdentity() == 1 {
		return refPoint{}
	}
	b := p.UncompressedBytes()
	return refPoint{new(big.Int).SetBytes(b[1:33]), new(big.Int).SetBytes(b[33:])}
}

// combination returns m*p + n*q, for m and n >= 0, bit by bit.
func combination(m *big.Int, p refPoint, n *big.Int, q refPoint) refPoint {
	both, sum := p.add(q), jacobian{}
	for i := max(m.BitLen(), n.BitLen()) - 1; i >= 0; i-- {
		sum = sum.double()
		switch {
		case m.Bit(i) == 1 && n.Bit(i) == 1:
			sum = sum.add(both)
		case m.Bit(i) == 1:
			sum = sum.add(p)
		case n.Bit(i) == 1:
			sum = sum.add(q)
		}
	}
	return sum.affine()
}

// jacobian is the point (x/z², y/z³). The zero value is the point at infinity. It saves one inverse
// modulo the prime per addition.
type jacobian struct{ x, y, z *big.Int }

// affine returns p in affine coordinates.
func (p jacobian) affine() refPoint {
	if p.z == nil {
		return refPoint{}
	}
	inverse := new(big.Int).ModInverse(p.z, refPrime)
	square := mulPrime(inverse, inverse)
	return refPoint{mulPrime(p.x, square), mulPrime(p.y, mulPrime(square, inverse))}
}

// double returns 2*p.
func (p jacobian) double() jacobian {
	if p.z == nil {
		return p
	}
	ySquare := mulPrime(p.y, p.y)
	s := mulPrime(p.x, new(big.Int).Lsh(ySquare, 2))
	m := mulPrime(p.x, new(big.Int).Mul(p.x, three))
	x := new(big.Int).Sub(mulPrime(m, m), new(big.Int).Lsh(s, 1))
	x.Mod(x, refPrime)
	y := new(big.Int).Mul(m, s.Sub(s, x))
	y.Sub(y, ySquare.Lsh(ySquare.Mul(ySquare, ySquare), 3))
	return jacobian{x, y.Mod(y, refPrime), mulPrime(p.y, new(big.Int).Lsh(p.z, 1))}
}

// add returns p + q.
func (p jacobian) add(q refPoint) jacobian {
	switch {
	case q.infinite():
		return p
	case p.z == nil:
		return jacobian{q.x, q.y, one}
	}
	zSquare := mulPrime(p.z, p.z)
	h := new(big.Int).Sub(mulPrime(q.x, zSquare), p.x)
	r := new(big.Int).Sub(mulPrime(q.y, mulPrime(zSquare, p.z)), p.y)
	switch {
	case h.Sign() == 0 && r.Sign() == 0:
		return p.double()
	case h.Sign() == 0:
		return jacobian{} // q = -p
	}
	hSquare := mulPrime(h, h)
	hCube, v := mulPrime(hSquare, h), mulPrime(p.x, hSquare)
	x := new(big.Int).Sub(mulPrime(r, r), hCube)
	x.Mod(x.Sub(x, new(big.Int).Lsh(v, 1)), refPrime)
	y := new(big.Int).Mul(r, v.Sub(v, x))
	y.Sub(y, hCube.Mul(hCube, p.y))
	return jacobian{x, y.Mod(y, refPrime), mulPrime(h, p.z)}
}

// mulPrime returns a*b modulo the prime.
func mulPrime(a, b *big.Int) *big.Int {
	product := new(big.Int).Mul(a, b)
	return product.Mod(product, refPrime)
}

// compressed returns the compressed form of p (SEC 1, section 2.3.3).
func (p refPoint) compressed() []byte {
	if p.infinite() {
		return []byte{0}
	}
	b := make([]byte, 33)
	b[0] = 2 + byte(p.y.Bit(0))
	p.x.FillBytes(b[1:])
	return b
}

// pointAt returns the point with this x and an even y, and false if the curve has none.
func pointAt(x *big.Int) (refPoint, bool) {
	y := new(big.Int).Exp(x, big.NewInt(3), refPrime)
	y.Mod(y.Add(y, big.NewInt(7)), refPrime)
	if y.ModSqrt(y, refPrime) == nil {
		return refPoint{}, false
	}
	if y.Bit(0) == 1 {
		y.Sub(refPrime, y)
	}
	return refPoint{new(big.Int).Set(x), y}, true
}

// refVerify reports whether signature, r ‖ s, is one of hash by key, with s at most half the order.
func refVerify(key refPoint, hash *[sha256.Size]byte, signature []byte) bool {
	if len(signature) != 64 || key.infinite() {
		return false
	}
	r, s := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
	half := new(big.Int).Rsh(refOrder, 1)
	if r.Sign() == 0 || r.Cmp(refOrder) >= 0 || s.Sign() == 0 || s.Cmp(half) > 0 {
		return false
	}
	u1, u2 := factors(new(big.Int).SetBytes(hash[:]), r, s)
	sum := combination(u1, refBase, u2, key)
	return !sum.infinite() && new(big.Int).Mod(sum.x, refOrder).Cmp(r) == 0
}

// factors returns e/s and r/s, the factors of the base point and of the key.
func factors(e, r, s *big.Int) (u1, u2 *big.Int) {
	inverse := new(big.Int).ModInverse(s, refOrder)
	return mulMod(e, inverse), mulMod(r, inverse)
}

// mulMod returns a*b modulo the order.
func mulMod(a, b *big.Int) *big.Int {
	product := new(big.Int).Mul(a, b)
	return product.Mod(product, refOrder)
}

// refSign returns r and the low s of the signature of e by secret, with the nonce k (SEC 1, section
// 4.1.3).
func refSign(secret, e, k *big.Int) (r, s *big.Int) {
	r = new(big.Int).Mod(timesBase(k).x, refOrder)
	s = mulMod(r, secret)
	s = mulMod(s.Add(s, e), new(big.Int).ModInverse(k, refOrder))
	return r, lowS(s)
}

// lowS returns s or -s, whichever is at most half the order.
func lowS(s *big.Int) *big.Int {
	if s.Cmp(new(big.Int).Rsh(refOrder, 1)) > 0 {
		return new(big.Int).Sub(refOrder, s)
	}
	return s
}

// keyFor returns the key by which r and s sign e, if sum is the point that the verifier must reach:
// (s*sum - e*G)/r.
func keyFor(sum refPoint, r, s, e *big.Int) refPoint {
	inverse := new(big.Int).ModInverse(r, refOrder)
	minusE := new(big.Int).Mod(new(big.Int).Neg(e), refOrder)
	return combination(mulMod(s, inverse), sum, mulMod(minusE, inverse), refBase)
}
