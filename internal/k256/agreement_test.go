package k256

import (
	"crypto/sha256"
	"math/big"
	"math/rand/v2"
	"testing"
)

// comparisons is how many signatures TestAgreement compares.
const comparisons = 400

// TestAgreement compares the verdicts of three implementations on random signatures and on numbers
// near the edges of their ranges: our path, the library that it is built on, and the reference.
func TestAgreement(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	const seed = 20260713
	random := generator{rand.New(rand.NewPCG(seed, 0))}
	edges := edgeNumbers()
	count := map[bool]int{}
	for i := range comparisons {
		key, hash, signature := random.signature(edges)
		got := verdicts(t, key, &hash, signature)
		if got.ours != got.library || got.ours != got.reference {
			t.Fatalf("signature %d of seed %d: %+v\nkey %x\nhash %x\nsignature %x", i, seed, got, key.compressed(), hash,
				signature)
		}
		count[got.ours]++
	}
	t.Logf("%d valid, %d invalid", count[true], count[false])
	if least := comparisons / 4; count[true] < least || count[false] < least {
		t.Errorf("%d valid and %d invalid signatures, want at least %d of each", count[true], count[false], least)
	}
}

// edgeNumbers returns numbers of at most 32 bytes around the edges of the arithmetic, with 0 and
// numbers beyond the order.
func edgeNumbers() []*big.Int {
	centers := []*big.Int{
		new(big.Int), halfOrder, refOrder, refPrime, maximum,
		new(big.Int).Sub(refPrime, refOrder), refBase.x, refBase.y,
	}
	for bit := uint(8); bit < 256; bit += 8 {
		centers = append(centers, new(big.Int).Lsh(one, bit))
	}
	var all []*big.Int
	for _, center := range centers {
		for d := int64(-3); d <= 3; d++ {
			if n := plus(center, d); n.Sign() >= 0 && n.Cmp(maximum) <= 0 {
				all = append(all, n)
			}
		}
	}
	return all
}

// generator makes signatures, valid and not, from random and from edge numbers.
type generator struct{ *rand.Rand }

// number returns a number of at most 32 bytes: random, an edge number, or short.
func (g generator) number(edges []*big.Int) *big.Int {
	var b [32]byte
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	n := new(big.Int).SetBytes(b[:])
	switch g.IntN(4) {
	case 0:
		return new(big.Int).Set(edges[g.IntN(len(edges))])
	case 1:
		return n.Rsh(n, uint(g.IntN(256)))
	}
	return n
}

// scalar returns a number from 1 to n-1.
func (g generator) scalar(edges []*big.Int) *big.Int {
	for {
		if n := new(big.Int).Mod(g.number(edges), refOrder); n.Sign() != 0 {
			return n
		}
	}
}

// signature returns a key, a hash and a signature. About half of the signatures are valid. The
// others are changed in one of several ways.
func (g generator) signature(edges []*big.Int) (key refPoint, hash [sha256.Size]byte, signature []byte) {
	secret, e := g.scalar(edges), g.number(edges)
	key, hash = timesBase(secret), bytes32(e)
	r, s := refSign(secret, e, g.scalar(edges))
	if r.Sign() == 0 || s.Sign() == 0 {
		return key, hash, compact(r, s)
	}
	switch g.IntN(18) {
	case 0: // any two numbers
		return key, hash, compact(g.number(edges), g.number(edges))
	case 1:
		return key, hash, compact(g.number(edges), s)
	case 2:
		return key, hash, compact(r, g.number(edges))
	case 3: // the high s
		return key, hash, compact(r, new(big.Int).Sub(refOrder, s))
	case 4: // another hash, or the same modulo n
		return key, bytes32(g.number(edges)), compact(r, s)
	case 5: // the opposite key
		return key.negate(), hash, compact(r, s)
	case 6: // one bit
		signature = compact(r, s)
		signature[g.IntN(len(signature))] ^= 1 << g.IntN(8)
		return key, hash, signature
	case 7: // another length
		signature = append(compact(r, s), 0)
		return key, hash, signature[:g.IntN(len(signature)+1)]
	case 8: // u1 and u2 may be edge numbers. Their sum is infinite with negligible probability
		u1, u2 := g.scalar(edges), g.scalar(edges)
		v := chosen("", "", key, u1, u2)
		return v.key, v.hash, v.sig
	}
	return key, hash, compact(r, s)
}
