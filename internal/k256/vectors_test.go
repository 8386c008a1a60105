package k256

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"gitlab.com/yawning/secp256k1-voi/secec"
)

// The vectors follow the classes of Project Wycheproof's tests of ECDSA on secp256k1 with SHA-256
// in IEEE P1363 form (r ‖ s of 32 bytes each, RFC 7518, section 3.4). That is the form of a JWT
// with alg ES256K. The vectors are made here, by the reference implementation. AT Protocol requires
// a low s, so that a high s is refused here while Wycheproof accepts it.

// vector is a signature with the verdict that every implementation must give.
type vector struct {
	class   string // Wycheproof's flag, or our own name where it has none
	comment string
	key     refPoint
	hash    [sha256.Size]byte
	sig     []byte
	valid   bool
}

// Inputs that the vectors share.
var (
	one, two, three = big.NewInt(1), big.NewInt(2), big.NewInt(3)
	halfOrder       = new(big.Int).Rsh(refOrder, 1)
	maximum         = new(big.Int).Sub(new(big.Int).Lsh(one, 256), one) // the largest of 32 bytes
	secret          = number("8f2a55949038a9610f50fb23b5883af3b4ecb3c3bb792cbcefbd1542c692be63")
	nonce           = number("2d2d5b1f0c7e64a1b38f96c4d70e2a9587c3f1b064ae91d2375f8c08b6e43a17")
	content         = []byte("header.claims")
)

// bytes32 returns n in 32 bytes, big-endian.
func bytes32(n *big.Int) (b [32]byte) {
	n.FillBytes(b[:])
	return b
}

// compact returns r ‖ s. Both must fit in 32 bytes.
func compact(r, s *big.Int) []byte {
	first, second := bytes32(r), bytes32(s)
	return append(first[:], second[:]...)
}

// minus returns n - d.
func minus(n *big.Int, d int64) *big.Int { return new(big.Int).Sub(n, big.NewInt(d)) }

// plus returns n + d.
func plus(n *big.Int, d int64) *big.Int { return new(big.Int).Add(n, big.NewInt(d)) }

// negative returns -n modulo the order.
func negative(n *big.Int) *big.Int { return new(big.Int).Mod(new(big.Int).Neg(n), refOrder) }

// point returns the first point of the curve whose x is from or steps away from it.
func point(from *big.Int, step int64) refPoint {
	for x := new(big.Int).Set(from); ; x.Add(x, big.NewInt(step)) {
		if p, ok := pointAt(x); ok {
			return p
		}
	}
}

// vectors returns all vectors.
func vectors() []vector {
	return slices.Concat(sizeVectors(), rangeVectors(), hashVectors(), keyVectors(), factorVectors(), pointVectors())
}

// sizeVectors are signatures of a wrong length or encoding.
func sizeVectors() []vector {
	hash := sha256.Sum256(content)
	key := timesBase(secret)
	r, s := refSign(secret, new(big.Int).SetBytes(hash[:]), nonce)
	good := compact(r, s)
	other := sha256.Sum256([]byte("header.other claims"))
	der := append([]byte{0x30, 68, 2, 32}, good[:32]...)
	der = append(append(der, 2, 32), good[32:]...)
	zeros := make([]byte, 64)
	return []vector{
		{"ValidSignature", "a signature by the reference", key, hash, good, true},
		{"WrongHash", "the signature of other content", key, other, good, false},
		{"WrongKey", "the signature by another key", timesBase(nonce), hash, good, false},
		{"SignatureSize", "no bytes", key, hash, nil, false},
		{"SignatureSize", "r alone", key, hash, good[:32], false},
		{"SignatureSize", "s cut by its last byte", key, hash, good[:63], false},
		{"SignatureSize", "r cut by its first byte", key, hash, good[1:], false},
		{"SignatureSize", "a byte 0 appended", key, hash, append(slices.Clone(good), 0), false},
		{"SignatureSize", "a byte 0 prepended", key, hash, append([]byte{0}, good...), false},
		{"SignatureSize", "r and s of 33 bytes", key, hash, slices.Concat([]byte{0}, good[:32], []byte{0}, good[32:]), false},
		{"SignatureSize", "the signature twice", key, hash, append(slices.Clone(good), good...), false},
		{"SignatureSize", "with a recovery ID", key, hash, append(slices.Clone(good), 1), false},
		{"InvalidEncoding", "ASN.1 DER", key, hash, der, false},
		{"InvalidEncoding", "s before r", key, hash, compact(s, r), false},
		{"InvalidEncoding", "little-endian", key, hash, slices.Concat(reversed(good[:32]), reversed(good[32:])), false},
		{"InvalidSignature", "64 bytes 0", key, hash, zeros, false},
		{"InvalidSignature", "64 bytes ff", key, hash, bytes.Repeat([]byte{0xff}, 64), false},
	}
}

// reversed returns b from its end to its start.
func reversed(b []byte) []byte {
	b = slices.Clone(b)
	slices.Reverse(b)
	return b
}

// rangeVectors are signatures whose r or s is at the edge of its range, outside it, or equivalent
// to the right one.
func rangeVectors() []vector {
	hash := sha256.Sum256(content)
	e := new(big.Int).SetBytes(hash[:])
	key := timesBase(secret)
	r, s := refSign(secret, e, nonce)
	field := new(big.Int).Sub(refPrime, refOrder) // a little less than 2^129
	all := []vector{
		{"SignatureMalleability", "the high s of a valid signature", key, hash, compact(r, new(big.Int).Sub(refOrder, s)),
			false},
		{"RangeCheck", "-r modulo the order", key, hash, compact(negative(r), s), false},

		{"RangeCheck", "r and s both negated", key, hash, compact(negative(r), negative(s)), false},
	}
	// Wycheproof's RangeCheck and InvalidSignature: each edge value with the right other number,
	// and each edge value with each.
	edgeValues := map[string]*big.Int{
		"0": new(big.Int), "1": one, "2": two, "n/2": halfOrder, "n/2+1": plus(halfOrder, 1),
		"n-2": minus(refOrder, 2), "n-1": minus(refOrder, 1), "n": refOrder, "n+1": plus(refOrder, 1),
		"p-n": field, "p-1": minus(refPrime, 1), "p": refPrime, "p+1": plus(refPrime, 1), "2^256-1": maximum,
	}
	for nameR, edgeR := range edgeValues {
		all = append(all,
			vector{"RangeCheck", "r = " + nameR, key, hash, compact(edgeR, s), false},
			vector{"RangeCheck", "s = " + nameR, key, hash, compact(r, edgeR), false})
		for nameS, edgeS := range edgeValues {
			all = append(all, vector{"InvalidSignature", "r = " + nameR + ", s = " + nameS, key, hash, compact(edgeR, edgeS),
				false})
		}
	}
	// r and s at the edge, with the key for which they are right.
	sum := timesBase(nonce)
	xr := new(big.Int).Mod(sum.x, refOrder)
	for name, s := range map[string]*big.Int{
		"s = 1": one, "s = 2": two, "s = 3": three, "s = n/2": halfOrder, "s = 2^128": new(big.Int).Lsh(one, 128),
		"s = 2^255 - 2^128": minus(new(big.Int).Lsh(one, 254), 1),
	} {
		all = append(all, vector{"ModularInverse", name + " is right", keyFor(sum, xr, s, e), hash, compact(xr, s), true})
	}
	for name, s := range map[string]*big.Int{
		"s = n/2+1": plus(halfOrder, 1), "s = n-1": minus(refOrder, 1), "s = n-2": minus(refOrder, 2),
	} {
		all = append(all, vector{"SignatureMalleability", name + " is right but high", keyFor(sum, xr, s, e), hash,
			compact(xr, s), false})
	}
	small := point(one, 1) // the least x of a point
	all = append(all,
		vector{"SmallRandS", "the least r that a point has", keyFor(small, small.x, one, e), hash, compact(small.x, one),
			true},
		vector{"SmallRandS", "the same r, another s", keyFor(small, small.x, one, e), hash, compact(small.x, two), false})
	// x is between n and p, so that r is x - n (SEC 1, section 4.1.4, step 7).
	for name, wide := range map[string]refPoint{
		"the least x > n": point(plus(refOrder, 1), 1), "the largest x < p": point(minus(refPrime, 1), -1),
	} {
		r := new(big.Int).Sub(wide.x, refOrder)
		key := keyFor(wide, r, two, e)
		all = append(all,
			vector{"ArithmeticError", name + ", r = x - n", key, hash, compact(r, two), true},
			vector{"RangeCheck", name + ", r = x", key, hash, compact(wide.x, two), false})
	}
	// Here r + n < p, so that two values of x give r. This vector has the smaller one, x = r.
	narrow := point(three, 1)
	return append(all, vector{"ArithmeticError", "r < p - n, x = r", keyFor(narrow, narrow.x, three, e), hash,
		compact(narrow.x, three), true})
}

// hashVectors are signatures of hashes at the edges of their range.
func hashVectors() []vector {
	key := timesBase(secret)
	var all []vector
	for name, e := range map[string]*big.Int{
		"0": new(big.Int), "1": one, "n/2": halfOrder, "n-1": minus(refOrder, 1), "n": refOrder, "n+1": plus(refOrder, 1),
		"p": refPrime, "2^256-1": maximum, "2^255": new(big.Int).Lsh(one, 255), "2^128": new(big.Int).Lsh(one, 128),
		"32 zero bits first": new(big.Int).Rsh(maximum, 32),
		"128 zero bits last": new(big.Int).Lsh(new(big.Int).Rsh(nonce, 128), 128),
	} {
		r, s := refSign(secret, e, nonce)
		all = append(all,
			vector{"SpecialCaseHash", "hash = " + name, key, bytes32(e), compact(r, s), true},
			vector{"SpecialCaseHash", "hash = " + name + ", one bit changed", key, bytes32(new(big.Int).Xor(e, one)),
				compact(r, s), false})
	}
	// The hash is a number modulo n: 0 and n have the same signatures, and so have 1 and n+1.
	r, s := refSign(secret, refOrder, nonce)
	all = append(all, vector{"SpecialCaseHash", "hash = 0 by a signature of n", key, [32]byte{}, compact(r, s), true})
	r, s = refSign(secret, one, nonce)
	return append(all, vector{"SpecialCaseHash", "hash = n+1 by a signature of 1", key, bytes32(plus(refOrder, 1)),
		compact(r, s), true})
}

// keyVectors are signatures by keys at the edges: small multiples of the base point, large ones,
// and points whose x is small or large.
func keyVectors() []vector {
	hash := sha256.Sum256(content)
	e := new(big.Int).SetBytes(hash[:])
	var all []vector
	both := func(class, comment string, key refPoint, r, s *big.Int) {
		all = append(all,
			vector{class, comment, key, hash, compact(r, s), true},
			vector{class, comment + ", r changed", key, hash, compact(mulMod(r, two), s), false},
			vector{class, comment + ", the opposite key", key.negate(), hash, compact(r, s), false})
	}
	for i := int64(1); i <= 40; i++ {
		r, s := refSign(big.NewInt(i), e, nonce)
		both("EdgeCasePublicKey", fmt.Sprintf("key = %d*G", i), timesBase(big.NewInt(i)), r, s)
		r, s = refSign(minus(refOrder, i), e, nonce)
		both("EdgeCasePublicKey", fmt.Sprintf("key = -%d*G", i), timesBase(minus(refOrder, i)), r, s)
	}
	// Multiples at which a strand begins.
	for strand := uint(1); strand < strands; strand++ {
		secret := new(big.Int).Lsh(one, columns*strand)
		r, s := refSign(secret, e, nonce)
		both("EdgeCasePublicKey", fmt.Sprintf("key = 2^%d*G", columns*strand), timesBase(secret), r, s)
	}
	// No secret is known for these keys. u1 and u2 are chosen, and e and s follow: r = x(u1*G +
	// u2*Q), s = r/u2, e = u1*s.
	for name, key := range map[string]refPoint{
		"least x": point(one, 1), "largest x": point(minus(refPrime, 1), -1), "x near n": point(refOrder, 1),
		"x near n, below": point(minus(refOrder, 1), -1), "x near 2^255": point(new(big.Int).Lsh(one, 255), 1),
		"x near 2^128":           point(new(big.Int).Lsh(one, 128), 1),
		"half of the base point": timesBase(new(big.Int).Rsh(plus(refOrder, 1), 1)),
	} {
		all = append(all, chosen("EdgeCasePublicKey", name, key, nonce, secret),
			chosen("EdgeCasePublicKey", name+", odd y", key.negate(), nonce, secret))
	}
	return all
}

// chosen returns a valid vector whose verifier computes u1*G + u2*key. If the s for that is high,
// it takes -s: the verifier then computes the opposite point, which has the same x.
func chosen(class, comment string, key refPoint, u1, u2 *big.Int) vector {
	sum := combination(u1, refBase, u2, key)
	if sum.infinite() {
		panic(comment)
	}
	r := new(big.Int).Mod(sum.x, refOrder)
	s := mulMod(r, new(big.Int).ModInverse(u2, refOrder))
	return vector{class, comment, key, bytes32(mulMod(u1, s)), compact(r, lowS(s)), true}
}

// factorVectors have u1 or u2 at the edges of their range, where a digit, a carry or a strand
// begins or ends (Wycheproof's EdgeCaseShamirMultiplication).
func factorVectors() []vector {
	key := timesBase(secret)
	edgeFactors := map[string]*big.Int{
		"1": one, "2": two, "3": three, "n-1": minus(refOrder, 1), "n-2": minus(refOrder, 2),
		"n/2": halfOrder, "n/2+1": plus(halfOrder, 1), "2^255": new(big.Int).Lsh(one, 255),
		"5555...": number("5555555555555555555555555555555555555555555555555555555555555555"),
		"aaaa...": number("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
	}
	for bit := uint(8); bit < 256; bit += 8 {
		edgeFactors[fmt.Sprintf("2^%d", bit)] = new(big.Int).Lsh(one, bit)
		edgeFactors[fmt.Sprintf("2^%d-1", bit)] = minus(new(big.Int).Lsh(one, bit), 1)
	}
	var all []vector
	for name, u := range edgeFactors {
		all = append(all,
			chosen("EdgeCaseShamirMultiplication", "u1 = "+name, key, u, secret),
			chosen("EdgeCaseShamirMultiplication", "u2 = "+name, key, nonce, u),
			chosen("EdgeCaseShamirMultiplication", "u1 = 0, u2 = "+name, key, new(big.Int), u))
	}
	// u2 = r/s is never 0, because r is not 0. A verifier that lets r = 0 pass computes it.
	return append(all, vector{"EdgeCaseShamirMultiplication", "u2 = 0", key, bytes32(one), compact(new(big.Int), one),
		false})
}

// pointVectors have intermediate sums that vanish or are equal: the two parts of the sum, or the
// multiples that are added for one digit (Wycheproof's PointDuplication).
func pointVectors() []vector {
	hash := sha256.Sum256(content)
	e := new(big.Int).SetBytes(hash[:])
	var all []vector
	for i := int64(-4); i <= 4; i++ {
		if i == 0 {
			continue
		}
		multiple := new(big.Int).Mod(big.NewInt(i), refOrder)
		key, name := timesBase(multiple), fmt.Sprintf("key = %d*G", i)
		inverse := new(big.Int).ModInverse(multiple, refOrder)
		all = append(all,
			// u1 = multiple*u2, so that both parts are the same point and their sum is a doubling.
			chosen("PointDuplication", name+", both parts equal", key, mulMod(multiple, nonce), nonce))
		if i != -1 {
			all = append(all, chosen("PointDuplication", name+", u1 = u2", key, nonce, nonce))
		}
		// e = -r*multiple, so that the sum is infinite whatever s is.
		for sName, s := range map[string]*big.Int{"1": one, "3": three, "n/2": halfOrder} {
			r := mulMod(negative(e), inverse)
			all = append(all, vector{"PointDuplication", name + ", s = " + sName + ", the sum is infinite", key, hash,
				compact(r, s), false})
		}
	}
	// The last addition, the one before it, and so on double or vanish: u1 and u2 are small.
	for i := int64(1); i <= 5; i++ {
		for j := int64(1); j <= 5; j++ {
			all = append(all, chosen("PointDuplication", fmt.Sprintf("key = G, u1 = %d, u2 = %d", i, j), refBase, big.NewInt(i),
				big.NewInt(j)))
			if i != j {
				all = append(all, chosen("PointDuplication", fmt.Sprintf("key = -G, u1 = %d, u2 = %d", i, j), refBase.negate(),
					big.NewInt(i), big.NewInt(j)))
			}
		}
	}
	// The key is a precomputed multiple of the base point, so that a table entry meets itself.
	for _, digit := range []int64{1, 3, 15, 127} {
		for strand := uint(0); strand < strands; strand++ {
			multiple := new(big.Int).Lsh(big.NewInt(digit), columns*strand)
			key := timesBase(multiple)
			all = append(all,
				chosen("PointDuplication", fmt.Sprintf("key = %d*2^%d*G met by u1", digit, columns*strand), key, multiple, one),
				vector{"PointDuplication", fmt.Sprintf("key = %d*2^%d*G cancelled by u1", digit, columns*strand), key,
					bytes32(negative(multiple)), compact(one, one), false})
		}
	}
	return all
}

// TestVectors has each implementation give the expected verdict.
func TestVectors(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	classes, names := map[string]int{}, map[string]bool{}
	for _, v := range vectors() {
		name := v.class + ": " + v.comment
		if names[name] {
			t.Errorf("two vectors %q", name)
		}
		names[name] = true
		classes[v.class]++
		if got := verdicts(t, v.key, &v.hash, v.sig); got != (verdict{v.valid, v.valid, v.valid}) {
			t.Errorf("%s: %+v, want valid: %t\nkey %x\nhash %x\nsignature %x", name, got, v.valid, v.key.compressed(), v.hash,
				v.sig)
		}
	}
	t.Logf("%d vectors: %v", len(names), classes)
}

// TestIndigoVectors has indigo, and our path for content of a JWT, give the expected verdict. Both
// hash the content themselves, so that only the vectors with the hash of some content apply.
func TestIndigoVectors(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	hash := sha256.Sum256(content)
	checked := 0
	for _, v := range vectors() {
		if v.hash != hash {
			continue
		}
		checked++
		indigo, err := atcrypto.ParsePublicBytesK256(v.key.compressed())
		if err != nil {
			t.Fatal(err)
		}
		ours, err := NewKey(v.key.compressed())
		if err != nil {
			t.Fatal(err)
		}
		if got := indigo.HashAndVerify(content, v.sig) == nil; got != v.valid {
			t.Errorf("%s: %s: indigo says %t", v.class, v.comment, got)
		}
		if got := ours.HashAndVerify(content, v.sig) == nil; got != v.valid {
			t.Errorf("%s: %s: verified: %t", v.class, v.comment, got)
		}
	}
	const least = 500
	if checked < least {
		t.Errorf("%d vectors, want at least %d", checked, least)
	}
}

// TestKeyVectors are encodings of public keys, good and bad.
func TestKeyVectors(t *testing.T) {
	good := refBase.compressed()
	y := bytes32(refBase.y)
	uncompressed := slices.Concat([]byte{4}, good[1:], y[:])
	withX := func(prefix byte, x *big.Int) []byte {
		b := bytes32(x)
		return append([]byte{prefix}, b[:]...)
	}
	withPrefix := func(prefix byte) []byte { return append([]byte{prefix}, good[1:]...) }
	offCurve := big.NewInt(1)
	for _, ok := pointAt(offCurve); ok; _, ok = pointAt(offCurve) {
		offCurve.Add(offCurve, one)
	}
	for name, tc := range map[string]struct {
		key   []byte
		valid bool
	}{
		"the base point":                   {good, true},
		"its opposite":                     {refBase.negate().compressed(), true},
		"the least x":                      {point(one, 1).compressed(), true},
		"the largest x":                    {point(minus(refPrime, 1), -1).compressed(), true},
		"no bytes":                         {nil, false},
		"infinity, one byte":               {[]byte{0}, false},
		"infinity, 33 bytes":               {make([]byte, 33), false},
		"infinity, 65 bytes":               {make([]byte, 65), false},
		"x = 0, which no point has":        {withX(2, new(big.Int)), false},
		"x not on the curve":               {withX(2, offCurve), false},
		"x not on the curve, odd y":        {withX(3, offCurve), false},
		"x = p":                            {withX(2, refPrime), false},
		"x = p + 1, which reduces to 1":    {withX(2, plus(refPrime, 1)), false},
		"x = p + 4, which may reduce to 4": {withX(2, plus(refPrime, 4)), false},
		"x = 2^256-1":                      {withX(2, maximum), false},
		"prefix 0":                         {withPrefix(0), false},
		"prefix 1":                         {withPrefix(1), false},
		"prefix 4 with x only":             {withPrefix(4), false},
		"prefix 5":                         {withPrefix(5), false},
		"hybrid prefix 6 with x only":      {withPrefix(6), false},
		"hybrid prefix 7 with x only":      {withPrefix(7), false},
		"prefix ff":                        {withPrefix(0xff), false},
		"uncompressed":                     {uncompressed, false},
		"x alone":                          {good[1:], false},
		"cut":                              {good[:32], false},
		"a byte appended":                  {append(slices.Clone(good), 0), false},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := NewKey(tc.key)
			if (err == nil) != tc.valid || (key != nil) != tc.valid {
				t.Errorf("NewKey = %v, %v; want valid: %t", key != nil, err, tc.valid)
			}
			if _, err := atcrypto.ParsePublicBytesK256(tc.key); len(tc.key) == 33 && (err == nil) != tc.valid {
				t.Errorf("indigo: %v; want valid: %t", err, tc.valid)
			}
		})
	}
}

// verdict is what the three implementations say of a signature.
type verdict struct{ ours, library, reference bool }

// verdicts asks our path, the library that it is built on, and the reference.
func verdicts(t *testing.T, key refPoint, hash *[sha256.Size]byte, signature []byte) verdict {
	t.Helper()
	ours, err := NewKey(key.compressed())
	if err != nil {
		t.Fatal(err)
	}
	library, err := secec.NewPublicKey(key.compressed())
	if err != nil {
		t.Fatal(err)
	}
	return verdict{
		ours.verify(hash, signature) == nil,
		library.Verify(hash[:], signature, &secec.ECDSAOptions{Encoding: secec.EncodingCompact, RejectMalleable: true}),
		refVerify(key, hash, signature),
	}
}
