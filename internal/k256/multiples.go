package k256

import (
	"encoding/binary"
	"sync"

	"gitlab.com/yawning/secp256k1-voi"
)

// A scalar has 256 binary places. They are cut into strands of 32 columns each. A digit of a strand
// counts multiples of 2^(columns*strand) times the point. These multiples are precomputed. So one
// doubling of the sum serves the same column of all strands: 32 doublings instead of 256.
const (
	strands = 8
	columns = 256 / strands

	// Widths of digits in bits. A key's digits are narrower, because many keys are remembered.
	keyWidth, baseWidth = 5, 8
)

// multiples are P, 3P, 5P, ... up to the largest digit, for each strand. P is 2^(columns*strand)
// times the point.
type multiples [strands][]secp256k1.Point

// multiplesOf computes the multiples of point for digits of width bits.
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

// digits is a scalar in its non-adjacent form of some width. The scalar is the sum of digit i times
// 2^i. Each digit is 0, or odd and less than 2^(width-1) in absolute value. On average, one of
// width+1 digits is not 0.
type digits [256]int8

// set makes d the digits of k. All digits of d must be 0 before.
func (d *digits) set(k *secp256k1.Scalar, width uint) {
	// Either k or -k is at most half of the group's order, and so needs no digit 256.
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
		if word&1 == carry { // the place and the carry sum to 0 or 2: the digit is 0
			i++
			continue
		}
		digit := word&(1<<width-1) + carry // odd
		carry = digit >> (width - 1)       // digits in the upper half become negative
		d[i] = int8(int64(digit) - int64(carry<<width))
		if negative {
			d[i] = -d[i]
		}
		i += width
	}
}

// add adds the multiples that the digits of one column select to sum.
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
