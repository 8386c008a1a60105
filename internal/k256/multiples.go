package k256

import (
	"encoding/binary"
	"sync"

	"gitlab.com/yawning/secp256k1-voi"
)

// A scalar's 256 binary places are cut into strands of so many columns each. What a strand's digits stand for are multiples of
// 2^(columns*strand) times the point, which are worked out beforehand, so that the sum is doubled once for the same column of all
// strands: 32 times where it would be 256.
const (
	strands = 8
	columns = 256 / strands

	// Widths of digits in bits: for a key, of which there are many to remember, and for the base point.
	keyWidth, baseWidth = 5, 8
)

// multiples are, for each strand, P, 3P, 5P, ... up to the largest digit, P being 2^(columns*strand) times the point.
type multiples [strands][]secp256k1.Point

// multiplesOf works out the multiples of point for digits of width bits.
func multiplesOf(point *secp256k1.Point, width uint) *multiples {
	var m multiples
	n := 1 << (width - 2)
	all := make([]secp256k1.Point, strands*n)
	p, twice := secp256k1.NewPointFrom(point), secp256k1.NewIdentityPoint()
	for s := range m {
		m[s] = all[s*n : (s+1)*n]
		m[s][0].Set(p)
		twice.Double(p)
		for i := 1; i < n; i++ {
			m[s][i].Add(&m[s][i-1], twice)
		}
		for range columns {
			p.Double(p)
		}
	}
	return &m
}

// ofBase returns the multiples of the curve's base point.
var ofBase = sync.OnceValue(func() *multiples { return multiplesOf(secp256k1.NewGeneratorPoint(), baseWidth) })

// digits are those of a scalar: each is 0, or odd and less than 2^(width-1) in absolute value, and the scalar is the sum of digit i
// times 2^i (its non-adjacent form of that width: of width+1 digits next to each other one at most is not 0, in the mean).
type digits [256]int8

// set makes d, whose digits are all 0, the digits of k.
func (d *digits) set(k *secp256k1.Scalar, width uint) {
	// Of k and -k one is at most half of the group's order, so that it has no digit 256.
	negative := k.IsGreaterThanHalfN() == 1
	if negative {
		k = secp256k1.NewScalar().Negate(k)
	}
	var words [5]uint64 // little-endian, and one more to read beyond the end
	for i, b := 0, k.Bytes(); i < 4; i++ {
		words[i] = binary.BigEndian.Uint64(b[24-8*i:])
	}
	carry := uint64(0)
	for i := uint(0); i < 256; {
		word := words[i/64]>>(i%64) | words[i/64+1]<<1<<(63-i%64)
		if word&1 == carry { // the place is 0, with what is carried
			i++
			continue
		}
		digit := word&(1<<width-1) + carry // odd
		carry = digit >> (width - 1)       // the upper half of the digits is negative
		d[i] = int8(int64(digit) - int64(carry<<width))
		if negative {
			d[i] = -d[i]
		}
		i += width
	}
}

// add adds to sum what the digits of one column stand for.
func (m *multiples) add(sum *secp256k1.Point, d *digits, column int) {
	for s := range m {
		switch digit := d[s*columns+column]; {
		case digit > 0:
			sum.Add(sum, &m[s][digit/2])
		case digit < 0:
			sum.Subtract(sum, &m[s][-digit/2])
		}
	}
}
