package k256

import (
	"bytes"
	"encoding/binary"
	"math/big"
	"slices"
	"testing"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"gitlab.com/yawning/secp256k1-voi"
)

// scalarOf returns b, of any length, as a scalar.
func scalarOf(b []byte) *secp256k1.Scalar {
	var n big.Int
	n.Mod(n.SetBytes(b), order)
	var wide [secp256k1.ScalarSize]byte
	s, err := secp256k1.NewScalarFromCanonicalBytes((*[secp256k1.ScalarSize]byte)(n.FillBytes(wide[:])))
	if err != nil {
		panic(err)
	}
	return s
}

// edges returns the scalars at which a carry, a sign or a strand begins or ends.
func edges() []*secp256k1.Scalar {
	var all []*secp256k1.Scalar
	one := big.NewInt(1)
	around := func(n *big.Int) {
		for d := int64(-2); d <= 2; d++ {
			all = append(all, scalarOf(new(big.Int).Mod(new(big.Int).Add(n, big.NewInt(d)), order).Bytes()))
		}
	}
	for bit := uint(0); bit < 256; bit++ {
		around(new(big.Int).Lsh(one, bit))
	}
	around(order)
	around(new(big.Int).Rsh(order, 1))
	around(new(big.Int).SetBytes(bytes.Repeat([]byte{0x55}, 32)))
	around(new(big.Int).SetBytes(bytes.Repeat([]byte{0xaa}, 32)))
	return all
}

// wantDigits fails the test unless the digits of k have the form that digits documents.
func wantDigits(t *testing.T, k *secp256k1.Scalar, width uint) {
	t.Helper()
	var d digits
	d.set(k, width)
	var sum big.Int
	last := -int(width)
	for i, digit := range d {
		if digit == 0 {
			continue
		}
		if most := 1 << (width - 1); digit&1 == 0 || int(digit) >= most || int(digit) <= -most {
			t.Fatalf("digit %d of %x is %d", i, k.Bytes(), digit)
		}
		if i-last < int(width) {
			t.Fatalf("digits %d and %d of %x", last, i, k.Bytes())
		}
		last = i
		sum.Add(&sum, new(big.Int).Lsh(big.NewInt(int64(digit)), uint(i)))
	}
	if got := scalarOf(sum.Mod(&sum, order).Bytes()); got.Equal(k) != 1 {
		t.Fatalf("the digits of %x sum up to %x", k.Bytes(), got.Bytes())
	}
}

// TestEdges compares sums with the library's at the edges of the arithmetic.
func TestEdges(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	all := edges()
	point := secp256k1.NewIdentityPoint().ScalarBaseMult(scalarOf([]byte("a key")))
	key := &Key{multiplesOf(point, keyWidth)}
	for i, k := range all {
		wantDigits(t, k, keyWidth)
		wantDigits(t, k, baseWidth)
		for _, other := range []*secp256k1.Scalar{secp256k1.NewScalar(), scalarOf([]byte{1}), all[(i+7)%len(all)]} {
			for _, u := range [][2]*secp256k1.Scalar{{k, other}, {other, k}} {
				want := secp256k1.NewIdentityPoint().DoubleScalarMultBasepointVartime(u[0], u[1], point)
				if got := key.combine(u[0], u[1]); got.Equal(want) != 1 {
					t.Fatalf("%x, %x: another point than the library's", u[0].Bytes(), u[1].Bytes())
				}
			}
		}
	}
}

// TestSumIsInfiniteOrDoubled has the two parts of the sum cancel each other, and be equal. The sum
// is then infinite, or a doubling, which an incomplete formula computes wrong.
func TestSumIsInfiniteOrDoubled(t *testing.T) {
	base := &Key{multiplesOf(secp256k1.NewGeneratorPoint(), keyWidth)}
	u := scalarOf([]byte("any scalar"))
	if sum := base.combine(u, secp256k1.NewScalar().Negate(u)); sum.IsIdentity() != 1 {
		t.Error("u - u is not infinite")
	}
	want := secp256k1.NewIdentityPoint().ScalarBaseMult(secp256k1.NewScalar().Add(u, u))
	if base.combine(u, u).Equal(want) != 1 {
		t.Error("u + u is not 2u")
	}
}

// wantSame fails the test unless indigo and a key with multiples give the verdict valid. It also
// changes one bit of each byte of the signature: both must then give the same verdict.
func wantSame(t *testing.T, public *atcrypto.PublicKeyK256, content, signature []byte, valid bool) {
	t.Helper()
	key, err := NewKey(public.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if indigo := public.HashAndVerify(content, signature) == nil; indigo != valid {
		t.Fatalf("indigo says %t, want %t", indigo, valid)
	}
	if ours := key.HashAndVerify(content, signature) == nil; ours != valid {
		t.Fatalf("verified: %t, want %t", ours, valid)
	}
	for i := range signature {
		changed := slices.Clone(signature)
		changed[i] ^= 1 << (i % 8)
		indigo, ours := public.HashAndVerify(content, changed), key.HashAndVerify(content, changed)
		if (indigo == nil) != (ours == nil) {
			t.Fatalf("bit %d of byte %d: %v, indigo says %v", i%8, i, ours, indigo)
		}
	}
}

// identity returns a new key pair.
func identity(tb testing.TB) (*atcrypto.PrivateKeyK256, *atcrypto.PublicKeyK256) {
	tb.Helper()
	private, err := atcrypto.GeneratePrivateKeyK256()
	if err != nil {
		tb.Fatal(err)
	}
	public, err := private.PublicKey()
	if err != nil {
		tb.Fatal(err)
	}
	return private, public.(*atcrypto.PublicKeyK256)
}

// sign returns private's signature of content.
func sign(tb testing.TB, private *atcrypto.PrivateKeyK256, content []byte) []byte {
	tb.Helper()
	signature, err := private.HashAndSign(content)
	if err != nil {
		tb.Fatal(err)
	}
	return signature
}

func TestSignatures(t *testing.T) {
	t.Parallel()
	for i := range uint64(15) {
		private, public := identity(t)
		content := binary.BigEndian.AppendUint64(nil, i)
		wantSame(t, public, content, sign(t, private, content), true)
		wantSame(t, public, content, sign(t, private, []byte("other content")), false)
	}
}

// TestHighS has indigo accept a high s where a protocol allows it, and our path refuse it.
func TestHighS(t *testing.T) {
	private, public := identity(t)
	content := []byte("content")
	high := sign(t, private, content)
	new(big.Int).Sub(order, new(big.Int).SetBytes(high[32:])).FillBytes(high[32:])
	if err := public.HashAndVerifyLenient(content, high); err != nil {
		t.Fatalf("the high s should verify: %v", err)
	}
	wantSame(t, public, content, high, false)
}

// FuzzVerify compares with indigo on any content, signature and key.
func FuzzVerify(f *testing.F) {
	private, _ := identity(f)
	f.Add(private.Bytes(), []byte("content"), sign(f, private, []byte("content")))
	f.Add(private.Bytes(), []byte(""), make([]byte, 64))
	f.Fuzz(func(t *testing.T, secret, content, signature []byte) {
		if scalarOf(secret).IsZero() == 1 {
			return
		}
		private, err := atcrypto.ParsePrivateBytesK256(scalarOf(secret).Bytes())
		if err != nil {
			t.Fatal(err)
		}
		public, err := private.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		key, err := NewKey(public.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range [][]byte{signature, sign(t, private, content)} {
			indigo, ours := public.HashAndVerify(content, s), key.HashAndVerify(content, s)
			if (indigo == nil) != (ours == nil) {
				t.Fatalf("%v, indigo says %v", ours, indigo)
			}
		}
	})
}

// FuzzCombine compares sums with the library's for any pair of scalars and any key.
func FuzzCombine(f *testing.F) {
	f.Add([]byte{1}, []byte{1}, []byte{1})
	f.Add(order.Bytes(), bytes.Repeat([]byte{0xff}, 32), []byte{2})
	f.Fuzz(func(t *testing.T, a, b, secret []byte) {
		u1, u2 := scalarOf(a), scalarOf(b)
		wantDigits(t, u1, baseWidth)
		wantDigits(t, u2, keyWidth)
		point := secp256k1.NewIdentityPoint().ScalarBaseMult(scalarOf(secret))
		want := secp256k1.NewIdentityPoint().DoubleScalarMultBasepointVartime(u1, u2, point)
		if (&Key{multiplesOf(point, keyWidth)}).combine(u1, u2).Equal(want) != 1 {
			t.Fatal("another point than the library's")
		}
	})
}

// TestKeys follows a key through the cache: unknown, cached, with multiples, evicted.
func TestKeys(t *testing.T) {
	keys, err := NewKeys(2)
	if err != nil {
		t.Fatal(err)
	}
	content := []byte("content")
	privates, publics := make([]*atcrypto.PrivateKeyK256, 3), make([]*atcrypto.PublicKeyK256, 3)
	for i := range publics {
		privates[i], publics[i] = identity(t)
	}
	state := func(i int) string {
		cached, ok := keys.cache.Peek(publics[i])
		switch {
		case !ok:
			return "unknown"
		case cached.key == nil:
			return "cached"
		}
		return "with multiples"
	}
	check := func(i int, valid bool, want string) {
		t.Helper()
		signer := privates[i]
		if !valid {
			signer = privates[(i+1)%len(privates)]
		}
		if err := keys.HashAndVerify(publics[i], content, sign(t, signer, content)); (err == nil) != valid {
			t.Fatalf("HashAndVerify = %v", err)
		}
		if got := state(i); got != want {
			t.Fatalf("the key is %s, want %s", got, want)
		}
	}
	check(0, false, "unknown") // a forged signature fills no cache
	check(0, true, "cached")
	check(0, false, "cached")
	check(0, true, "cached")
	check(0, true, "with multiples")
	check(0, false, "with multiples")
	check(1, true, "cached")
	check(2, true, "cached")
	if got := state(0); got != "unknown" {
		t.Fatalf("the cache is for two keys, and the third is %s", got)
	}
	check(0, true, "cached")
}

// BenchmarkVerify measures indigo, a key with multiples, and the computation of the multiples.
func BenchmarkVerify(b *testing.B) {
	private, public := identity(b)
	content := []byte("content")
	signature := sign(b, private, content)
	key, err := NewKey(public.Bytes())
	if err != nil {
		b.Fatal(err)
	}
	for name, verify := range map[string]func(content, signature []byte) error{"Library": public.HashAndVerify,
		"Multiples": key.HashAndVerify} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := verify(content, signature); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("NewKey", func(b *testing.B) {
		b.ReportAllocs()
		compressed := public.Bytes()
		for b.Loop() {
			if _, err := NewKey(compressed); err != nil {
				b.Fatal(err)
			}
		}
	})
}
