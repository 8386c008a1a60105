package mls

import (
	"crypto"
	"crypto/elliptic"
	"hash"
	"strconv"

	"github.com/cloudflare/circl/sign/ed448"
)

// CipherSuite is a code point of the registry of RFC 9420 §17.1, or a code point that libraries use
// for a draft's post-quantum suite.
type CipherSuite uint16

// The cipher suites of RFC 9420. The lexicons name all but the last as known values.
const (
	SuiteX25519AES128   CipherSuite = 1
	SuiteP256AES128     CipherSuite = 2
	SuiteX25519ChaCha20 CipherSuite = 3
	SuiteX448AES256     CipherSuite = 4
	SuiteP521AES256     CipherSuite = 5
	SuiteX448ChaCha20   CipherSuite = 6
	SuiteP384AES256     CipherSuite = 7
)

// SuiteXWing is the post-quantum suite of draft-mahy-mls-xwing, as OpenMLS and Catbird implement
// it. The other post-quantum suites have no constant: see the table.
const SuiteXWing CipherSuite = 0x004D

// suiteParams is what this package needs to know of one suite. It handles no secrets, so it needs
// no AEAD.
type suiteParams struct {
	name string
	hash crypto.Hash
	kem  kem
	sign signature // signatures of leaves
}

// kem is the form of a KEM's public keys and of its outputs (kem_output).
type kem struct {
	keySize, outputSize   int                 // in bytes
	validKey, validOutput func(b []byte) bool // b has the right size
}

// signature is a signature algorithm (RFC 9420 §5.1.2).
type signature struct {
	keySize int            // bytes of a public key
	size    int            // bytes of a signature; 0 for ECDSA, whose DER encodings differ in size
	curve   elliptic.Curve // ECDSA only
	// verifier returns a function that verifies signatures of a key of keySize bytes. It returns
	// nil if the key is not a key of the algorithm.
	verifier func(key []byte) func(content, signature []byte) bool
}

// suites are the cipher suites by code point. First come the suites of RFC 9420 §17.1, then the
// suites of OpenMLS 0.9 (draft-ietf-mls-pq-ciphersuites and its predecessors, which have no
// registered code points yet). The post-quantum suites of ts-mls 2 are not here: their numbers are
// for private use, and one suite has the name of another number. An app can give ts-mls the suites
// of this table.
var suites = map[CipherSuite]*suiteParams{
	SuiteX25519AES128:   {"MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", crypto.SHA256, x25519, signEd25519},
	SuiteP256AES128:     {"MLS_128_DHKEMP256_AES128GCM_SHA256_P256", crypto.SHA256, p256, signP256},
	SuiteX25519ChaCha20: {"MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519", crypto.SHA256, x25519, signEd25519},
	SuiteX448AES256:     {"MLS_256_DHKEMX448_AES256GCM_SHA512_Ed448", crypto.SHA512, x448, signEd448},
	SuiteP521AES256:     {"MLS_256_DHKEMP521_AES256GCM_SHA512_P521", crypto.SHA512, p521, signP521},
	SuiteX448ChaCha20:   {"MLS_256_DHKEMX448_CHACHA20POLY1305_SHA512_Ed448", crypto.SHA512, x448, signEd448},
	SuiteP384AES256:     {"MLS_256_DHKEMP384_AES256GCM_SHA384_P384", crypto.SHA384, p384, signP384},

	0x0042:     {"MLS_192_MLKEM1024_AES256GCM_SHA384_P384", crypto.SHA384, mlkem1024, signP384},
	SuiteXWing: {"MLS_256_XWING_CHACHA20POLY1305_SHA256_Ed25519", crypto.SHA256, xwing, signEd25519},
	0x004E:     {"MLS_128_MLKEM768X25519_AES256GCM_SHA384_Ed25519", crypto.SHA384, xwing, signEd25519},
	0x004F:     {"MLS_128_MLKEM768X25519_AES128GCM_SHA256_Ed25519", crypto.SHA256, xwing, signEd25519},
	0x0050:     {"MLS_128_MLKEM768_AES256GCM_SHA384_P256", crypto.SHA384, mlkem768, signP256},
	0x0051:     {"MLS_192_MLKEM768_AES256GCM_SHA384_MLDSA65", crypto.SHA384, mlkem768, signMLDSA65},
	0x0052:     {"MLS_128_MLKEM768X25519_CHACHA20POLY1305_SHA384_MLDSA44", crypto.SHA384, xwing, signMLDSA44},
	0x0906:     {"MLS_256_MLKEM1024_AES256GCM_SHA512_MLDSA87", crypto.SHA512, mlkem1024, signMLDSA87},
	0x0907:     {"MLS_256_MLKEM1024_AES256GCM_SHA384_MLDSA87", crypto.SHA384, mlkem1024, signMLDSA87},
	0xF042:     {"MLS_128_MLKEM768_AES256GCM_SHA384_Ed25519", crypto.SHA384, mlkem768, signEd25519},
}

// params returns the suite's parameters, or nil if the table does not have it.
func (c CipherSuite) params() *suiteParams { return suites[c] }

// String returns the suite's name, or the number in hexadecimal if the table does not have it.
func (c CipherSuite) String() string {
	if p := c.params(); p != nil {
		return p.name
	}
	return "0x" + strconv.FormatUint(uint64(c), 16)
}

// ParseCipherSuite returns the suite with this name. Names are case-sensitive.
func ParseCipherSuite(name string) (CipherSuite, bool) {
	for c, p := range suites {
		if p.name == name {
			return c, true
		}
	}
	return 0, false
}

// Supported reports whether this package can verify objects of the suite.
func (c CipherSuite) Supported() bool { return c.params() != nil }

// newHash returns the suite's hash, or nil for an unknown suite.
func (c CipherSuite) newHash() hash.Hash {
	if p := c.params(); p != nil {
		return p.hash.New()
	}
	return nil
}

// hashSize returns the size of the suite's hash in bytes, or 0 if the suite is unknown.
func (c CipherSuite) hashSize() int {
	if p := c.params(); p != nil {
		return p.hash.Size()
	}
	return 0
}

// validHPKEKey reports whether key is a public key of the suite's KEM. The KEM uses an elliptic
// curve (RFC 9180 §7.1.1), ML-KEM (FIPS 203 §7.2) or both.
func (c CipherSuite) validHPKEKey(key []byte) bool {
	p := c.params()
	return p != nil && len(key) == p.kem.keySize && p.kem.validKey(key)
}

// validKEMOutput reports whether output has the form of an output of the suite's KEM. With an
// elliptic curve this is the form of a public key; otherwise it is any bytes of the right length.
func (c CipherSuite) validKEMOutput(output []byte) bool {
	p := c.params()
	return p != nil && len(output) == p.kem.outputSize && p.kem.validOutput(output)
}

// verifier returns a function that verifies signatures of key with the suite's algorithm (RFC 9420
// §5.1.2). It returns nil if key is not a public key of the algorithm.
func (c CipherSuite) verifier(key []byte) func(content, signature []byte) bool {
	p := c.params()
	if p == nil || len(key) != p.sign.keySize {
		return nil
	}
	return p.sign.verifier(key)
}

// wrongHPKEKey and wrongSignatureKey say what is wrong with a public key of the suite. For forms
// that known libraries write, they also say what to do.
func (c CipherSuite) wrongHPKEKey(key []byte) string { return wrongKey(key, c.params().kem.keySize) }
func (c CipherSuite) wrongSignatureKey(key []byte) string {
	return wrongKey(key, c.params().sign.keySize)
}

// wrongKey says why key is not a public key of size bytes. An uncompressed point has an odd size. A
// compressed point has one byte more than half of that size.
func wrongKey(key []byte, size int) string {
	n := strconv.Itoa(len(key)) + " bytes"
	switch {
	case size%2 == 1 && size != ed448.PublicKeySize && len(key) == (size+1)/2:
		return n + ": a compressed point, as ts-mls writes it; write the uncompressed point of " + strconv.Itoa(size) +
			" bytes"
	case len(key) != size:
		return n + ": not a public key of the cipher suite, which has " + strconv.Itoa(size)
	}
	return "not a public key of the cipher suite"
}
