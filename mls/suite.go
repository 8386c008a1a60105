package mls

import (
	"crypto/sha256"
	"crypto/sha512"
	"hash"
	"strconv"
)

// CipherSuite is a code point of RFC 9420 §17.1.
type CipherSuite uint16

// The cipher suites that the lexicons name. The first three are supported.
const (
	SuiteX25519AES128   CipherSuite = 1
	SuiteP256AES128     CipherSuite = 2
	SuiteX25519ChaCha20 CipherSuite = 3
	SuiteX448AES256     CipherSuite = 4
	SuiteP521AES256     CipherSuite = 5
	SuiteX448ChaCha20   CipherSuite = 6
)

// suiteP384AES256 is in the RFC but not in the lexicons.
const suiteP384AES256 CipherSuite = 7

// String returns the name in the RFC and the lexicons, or the number in hexadecimal if it has no
// name.
func (c CipherSuite) String() string {
	switch c {
	case SuiteX25519AES128:
		return "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"
	case SuiteP256AES128:
		return "MLS_128_DHKEMP256_AES128GCM_SHA256_P256"
	case SuiteX25519ChaCha20:
		return "MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519"
	case SuiteX448AES256:
		return "MLS_256_DHKEMX448_AES256GCM_SHA512_Ed448"
	case SuiteP521AES256:
		return "MLS_256_DHKEMP521_AES256GCM_SHA512_P521"
	case SuiteX448ChaCha20:
		return "MLS_256_DHKEMX448_CHACHA20POLY1305_SHA512_Ed448"
	}
	return "0x" + strconv.FormatUint(uint64(c), 16)
}

// ParseCipherSuite returns the suite with this name: one of the six in the lexicons, supported or
// not. Names are case-sensitive.
func ParseCipherSuite(name string) (CipherSuite, bool) {
	for c := SuiteX25519AES128; c <= SuiteX448ChaCha20; c++ {
		if c.String() == name {
			return c, true
		}
	}
	return 0, false
}

// Supported reports whether this package can verify objects of the suite.
func (c CipherSuite) Supported() bool {
	return c == SuiteX25519AES128 || c == SuiteP256AES128 || c == SuiteX25519ChaCha20
}

// newHash returns the suite's hash, or nil for a suite the RFC does not define.
func (c CipherSuite) newHash() hash.Hash {
	switch c {
	case SuiteX25519AES128, SuiteP256AES128, SuiteX25519ChaCha20:
		return sha256.New()
	case SuiteX448AES256, SuiteP521AES256, SuiteX448ChaCha20:
		return sha512.New()
	case suiteP384AES256:
		return sha512.New384()
	}
	return nil
}

// hashSize returns the size of the suite's hash in bytes, 0 if unknown.
func (c CipherSuite) hashSize() int {
	switch c {
	case SuiteX25519AES128, SuiteP256AES128, SuiteX25519ChaCha20:
		return sha256.Size
	case SuiteX448AES256, SuiteP521AES256, SuiteX448ChaCha20:
		return sha512.Size
	case suiteP384AES256:
		return sha512.Size384
	}
	return 0
}
