package k256

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math/big"
	"slices"
	"testing"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"gitlab.com/yawning/secp256k1-voi"
	"gitlab.com/yawning/secp256k1-voi/secec"
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

// edges are the scalars at which a carry, a sign or a strand begins or ends.
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

// wantDigits fails the test unless the digits of k are what digits promises.
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

// TestEdges compares with the library at the edges of the arithmetic.
func TestEdges(t *testing.T) {
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

// TestNothing has the two halves of the sum cancel each other, which is no point with an x, and be equal, which a formula that is not complete gets
// wrong.
func TestNothing(t *testing.T) {
	base := &Key{multiplesOf(secp256k1.NewGeneratorPoint(), keyWidth)}
	u := scalarOf([]byte("any scalar"))
	if sum := base.combine(u, secp256k1.NewScalar().Negate(u)); sum.IsIdentity() != 1 {
		t.Error("u - u is something")
	}
	want := secp256k1.NewIdentityPoint().ScalarBaseMult(secp256k1.NewScalar().Add(u, u))
	if base.combine(u, u).Equal(want) != 1 {
		t.Error("u + u is not 2u")
	}
	// e = -r makes the sum vanish, whatever s is: to the key 1 belongs the point 1.
	hash := sha256.Sum256([]byte("content"))
	r := scalarOf(hash[:])
	r.Negate(r)
	if err := base.HashAndVerify([]byte("content"), secec.BuildCompactSignature(r, scalarOf([]byte{3}))); err == nil {
		t.Error("a signature whose sum is nothing passes")
	}
}

// TestLargeX makes a signature whose point has an x larger than the group's order, which honest ones have once in 2^128: r is less than x.
func TestLargeX(t *testing.T) {
	var x [33]byte
	x[0] = 2
	n := new(big.Int).Add(order, big.NewInt(1))
	point, err := secp256k1.NewIdentityPoint().SetCompressedBytes(append([]byte{2}, n.FillBytes(x[1:])...))
	for err != nil { // about every second x has a point
		n.Add(n, big.NewInt(1))
		point, err = secp256k1.NewIdentityPoint().SetCompressedBytes(append([]byte{2}, n.FillBytes(x[1:])...))
	}
	content, s := []byte("content"), scalarOf([]byte{5})
	hash := sha256.Sum256(content)
	r := scalarOf(n.Bytes())
	// The key for which it is a signature: (s*R - e*G)/r.
	key := secp256k1.NewIdentityPoint().ScalarMult(s, point)
	key.Subtract(key, secp256k1.NewIdentityPoint().ScalarBaseMult(scalarOf(hash[:])))
	key.ScalarMult(secp256k1.NewScalar().Invert(r), key)

	public, err := atcrypto.ParsePublicBytesK256(key.CompressedBytes())
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, public, content, secec.BuildCompactSignature(r, s), true)
	wantSame(t, public, content, secec.BuildCompactSignature(r, scalarOf([]byte{6})), false)
}

// wantSame fails the test unless the library and a key with multiples say the same of a signature, and of every part of it that is
// changed that it is none.
func wantSame(t *testing.T, public *atcrypto.PublicKeyK256, content, signature []byte, valid bool) {
	t.Helper()
	key, err := NewKey(public.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if library := public.HashAndVerify(content, signature) == nil; library != valid {
		t.Fatalf("the library says %t", library)
	}
	if ours := key.HashAndVerify(content, signature) == nil; ours != valid {
		t.Fatalf("verified: %t, by the library %t", ours, valid)
	}
	for i := range signature {
		changed := slices.Clone(signature)
		changed[i] ^= 1 << (i % 8)
		library, ours := public.HashAndVerify(content, changed), key.HashAndVerify(content, changed)
		if (library == nil) != (ours == nil) {
			t.Fatalf("bit %d of byte %d: %v, by the library %v", i%8, i, ours, library)
		}
	}
}

// identity is a new key pair.
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
	for i := range uint64(50) {
		private, public := identity(t)
		content := binary.BigEndian.AppendUint64(nil, i)
		wantSame(t, public, content, sign(t, private, content), true)
		wantSame(t, public, content, sign(t, private, []byte("other content")), false)
	}
}

// TestForms are signatures that are none whatever the numbers in them.
func TestForms(t *testing.T) {
	private, public := identity(t)
	content := []byte("content")
	good := sign(t, private, content)
	high := slices.Clone(good)
	s := new(big.Int).SetBytes(good[32:])
	s.Sub(order, s).FillBytes(high[32:])
	if err := public.HashAndVerifyLenient(content, high); err != nil {
		t.Fatalf("the high-S form should verify: %v", err)
	}
	all := bytes.Repeat([]byte{0xff}, 32)
	for name, signature := range map[string][]byte{
		"none": nil, "short": good[:63], "long": append(slices.Clone(good), 0), "high S": high,
		"r of 0": append(make([]byte, 32), good[32:]...), "s of 0": append(slices.Clone(good[:32]), make([]byte, 32)...),
		"r of the order": append(order.Bytes(), good[32:]...), "s of the order": append(slices.Clone(good[:32]), order.Bytes()...),
		"a large r": append(slices.Clone(all), good[32:]...), "a large s": append(slices.Clone(good[:32]), all...),
		"zeros": make([]byte, 64),
	} {
		t.Run(name, func(t *testing.T) {
			key, err := NewKey(public.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			if err := key.HashAndVerify(content, signature); err == nil {
				t.Error("it verifies")
			}
		})
	}
}

func TestNoKey(t *testing.T) {
	_, public := identity(t)
	for name, point := range map[string][]byte{
		"nothing": nil, "identity": {0}, "no point": append([]byte{2}, bytes.Repeat([]byte{0xff}, 32)...), "not compressed": public.UncompressedBytes(),
	} {
		t.Run(name, func(t *testing.T) {
			if key, err := NewKey(point); err == nil || key != nil {
				t.Errorf("NewKey = %v, %v", key, err)
			}
		})
	}
}

// FuzzVerify compares with the library on any content, signature and key.
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
			library, ours := public.HashAndVerify(content, s), key.HashAndVerify(content, s)
			if (library == nil) != (ours == nil) {
				t.Fatalf("%v, by the library %v", ours, library)
			}
		}
	})
}

// FuzzCombine compares with the library on any pair of scalars and any key.
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

// TestKeys follows a key through the memory: unknown, seen, with multiples, pushed out.
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
		seen, ok := keys.known.Peek(publics[i])
		switch {
		case !ok:
			return "unknown"
		case seen.key == nil:
			return "seen"
		}
		return "known"
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
	check(0, false, "unknown") // a stranger's forgery is no reason to remember anything
	check(0, true, "seen")
	check(0, false, "seen")
	check(0, true, "seen")
	check(0, true, "known")
	check(0, false, "known")
	check(1, true, "seen")
	check(2, true, "seen")
	if got := state(0); got != "unknown" {
		t.Fatalf("of two keys that it may know, the third is %s", got)
	}
	check(0, true, "seen")
}

// BenchmarkVerify measures the library beside a key with multiples, and what these cost to work out.
func BenchmarkVerify(b *testing.B) {
	private, public := identity(b)
	content := []byte("content")
	signature := sign(b, private, content)
	key, err := NewKey(public.Bytes())
	if err != nil {
		b.Fatal(err)
	}
	for name, verify := range map[string]func(content, signature []byte) error{"Library": public.HashAndVerify, "Multiples": key.HashAndVerify} {
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
