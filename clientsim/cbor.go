package clientsim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
)

// cbor reads the DAG-CBOR of event frames (RFC 8949, definite lengths and shortest forms only). The first error stays; everything
// after it reads as nothing. What it returns aliases the frame.
type cbor struct {
	rest []byte
	err  error
}

// Major types of CBOR.
const (
	cborUint = iota
	cborNegative
	cborBytes
	cborText
	cborArray
	cborMap
	cborTag
	cborSimple
)

func (c *cbor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("DAG-CBOR: "+format, args...)
	}
	c.rest = nil
}

// head reads an item's type and argument, in the shortest form alone.
func (c *cbor) head() (major byte, arg uint64) {
	if len(c.rest) == 0 {
		c.fail("it ends too early")
		return 0, 0
	}
	first := c.rest[0]
	major, low := first>>5, first&31
	c.rest = c.rest[1:]
	if low < 24 {
		return major, uint64(low)
	}
	if low > 27 {
		c.fail("byte %#x: of indefinite length, or reserved", first)
		return 0, 0
	}
	size := 1 << (low - 24)
	if len(c.rest) < size {
		c.fail("it ends too early")
		return 0, 0
	}
	var wide [8]byte
	copy(wide[8-size:], c.rest)
	c.rest = c.rest[size:]
	arg = binary.BigEndian.Uint64(wide[:])
	if least := []uint64{24, 1 << 8, 1 << 16, 1 << 32}[low-24]; arg < least && major != cborSimple {
		c.fail("%d takes more bytes than it needs", arg)
	}
	return major, arg
}

// take reads an item of one type.
func (c *cbor) take(want byte, name string) uint64 {
	major, arg := c.head()
	if c.err == nil && major != want {
		c.fail("%s: major type %d, want %d", name, major, want)
	}
	return arg
}

func (c *cbor) slice(n uint64, name string) []byte {
	if c.err != nil {
		return nil
	}
	if n > uint64(len(c.rest)) {
		c.fail("%s: it ends too early", name)
		return nil
	}
	b := c.rest[:n:n]
	c.rest = c.rest[n:]
	return b
}

func (c *cbor) text(name string) string {
	b := c.slice(c.take(cborText, name), name)
	if !utf8.Valid(b) {
		c.fail("%s: not UTF-8", name)
	}
	return string(b)
}

func (c *cbor) bytes(name string) []byte { return c.slice(c.take(cborBytes, name), name) }

// integer reads one that may be negative.
func (c *cbor) integer(name string) int64 {
	major, arg := c.head()
	switch {
	case c.err != nil:
	case arg > 1<<53-1 || major > cborNegative:
		c.fail("%s: not an integer of 53 bits", name)
	case major == cborNegative:
		return -1 - int64(arg)
	}
	return int64(arg)
}

func (c *cbor) boolean(name string) bool {
	switch v := c.take(cborSimple, name); {
	case c.err != nil || v == 20:
		return false
	case v != 21:
		c.fail("%s: not a boolean", name)
	}
	return true
}

// fields reads a map whose keys are in DAG-CBOR's order: shorter ones first, then by bytes. field reads the value of a key.
func (c *cbor) fields(name string, field func(key string)) {
	n := c.take(cborMap, name)
	before := ""
	for i := uint64(0); i < n && c.err == nil; i++ {
		key := c.text(name)
		if i > 0 && (len(key) < len(before) || len(key) == len(before) && key <= before) {
			c.fail("%s: key %q after %q", name, key, before)
			return
		}
		before = key
		field(key)
	}
}

// skip passes over a value that nobody asked for.
func (c *cbor) skip(depth int) {
	if depth > 16 {
		c.fail("too deep")
		return
	}
	major, arg := c.head()
	switch major {
	case cborBytes, cborText:
		c.slice(arg, "a skipped value")
	case cborArray:
		for ; arg > 0 && c.err == nil; arg-- {
			c.skip(depth + 1)
		}
	case cborMap:
		for ; arg > 0 && c.err == nil; arg-- {
			c.text("a skipped key")
			c.skip(depth + 1)
		}
	case cborTag:
		c.skip(depth + 1)
	}
}

func (c *cbor) end() error {
	if c.err == nil && len(c.rest) > 0 {
		c.err = errors.New("DAG-CBOR: something follows")
	}
	return c.err
}
