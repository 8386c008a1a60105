package mls

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	_ "crypto/sha256" // SHA-256, as a crypto.Hash
	_ "crypto/sha512" // SHA-384 and SHA-512
	"hash"
	"strconv"

	"github.com/cloudflare/circl/sign/ed448"
)

// CipherSuite is a code point of RFC 9420 §17.1.
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

// suiteParams is what the RFC says of one suite, as far as it is needed without secrets.
type suiteParams struct {
	name string
	hash crypto.Hash
	kem  keyForm   // of the KEM's public keys and outputs (RFC 9180 §7.1)
	sign signature // of leaves
}

// keyForm is the form of an HPKE public key. X448 keys are any 56 bytes.
type keyForm struct {
	size  int        // in bytes
	curve ecdh.Curve // nil for X448
}

// signature is a signature algorithm (RFC 9420 §5.1.2).
type signature struct {
	keySize  int            // of a public key, in bytes
	size     int            // of a signature, in bytes; 0 for ECDSA, whose DER encodings differ in size
	curve    elliptic.Curve // ECDSA only
	verifyBy func(key, content, signature []byte) bool
}

// suites are the cipher suites of RFC 9420 §17.1 by code point.
var suites = [...]suiteParams{
	SuiteX25519AES128: {"MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519", crypto.SHA256, x25519, ed25519Signature},
	SuiteP256AES128: {"MLS_128_DHKEMP256_AES128GCM_SHA256_P256", crypto.SHA256, p256,
		signature{keySize: 65, curve: elliptic.P256()}},
	SuiteX25519ChaCha20: {"MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519", crypto.SHA256, x25519, ed25519Signature},
	SuiteX448AES256:     {"MLS_256_DHKEMX448_AES256GCM_SHA512_Ed448", crypto.SHA512, x448, ed448Signature},
	SuiteP521AES256: {"MLS_256_DHKEMP521_AES256GCM_SHA512_P521", crypto.SHA512, p521,
		signature{keySize: 133, curve: elliptic.P521()}},
	SuiteX448ChaCha20: {"MLS_256_DHKEMX448_CHACHA20POLY1305_SHA512_Ed448", crypto.SHA512, x448, ed448Signature},
	SuiteP384AES256: {"MLS_256_DHKEMP384_AES256GCM_SHA384_P384", crypto.SHA384, p384,
		signature{keySize: 97, curve: elliptic.P384()}},
}

var (
	x25519 = keyForm{32, ecdh.X25519()}
	x448   = keyForm{56, nil}
	p256   = keyForm{65, ecdh.P256()}
	p384   = keyForm{97, ecdh.P384()}
	p521   = keyForm{133, ecdh.P521()}

	ed25519Signature = signature{
		keySize: ed25519.PublicKeySize, size: ed25519.SignatureSize,
		verifyBy: func(key, content, signature []byte) bool { return ed25519.Verify(key, content, signature) },
	}
	ed448Signature = signature{ // with an empty context, as RFC 9420 §5.1.2 has no other
		keySize: ed448.PublicKeySize, size: ed448.SignatureSize,
		verifyBy: func(key, content, signature []byte) bool { return ed448.Verify(key, content, signature, "") },
	}
)

// params returns what the RFC says of the suite, or nil if the RFC does not define it.
func (c CipherSuite) params() *suiteParams {
	if c == 0 || int(c) >= len(suites) {
		return nil
	}
	return &suites[c]
}

// String returns the name in the RFC, or the number in hexadecimal if it has no
// name.
func (c CipherSuite) String() string {
	if p := c.params(); p != nil {
		return p.name
	}
	return "0x" + strconv.FormatUint(uint64(c), 16)
}

// ParseCipherSuite returns the suite of RFC 9420 with this name. Names are case-sensitive.
func ParseCipherSuite(name string) (CipherSuite, bool) {
	for c := range suites {
		if c > 0 && suites[c].name == name {
			return CipherSuite(c), true
		}
	}
	return 0, false
}

// Supported reports whether this package can verify objects of the suite: whether RFC 9420 defines
// it.
func (c CipherSuite) Supported() bool { return c.params() != nil }

// newHash returns the suite's hash, or nil for a suite that the RFC does not define.
func (c CipherSuite) newHash() hash.Hash {
	if p := c.params(); p != nil {
		return p.hash.New()
	}
	return nil
}

// hashSize returns the size of the suite's hash in bytes, 0 if unknown.
func (c CipherSuite) hashSize() int {
	if p := c.params(); p != nil {
		return p.hash.Size()
	}
	return 0
}

// validHPKEKey reports whether key has the form of a public key of the suite's KEM (RFC 9180
// §7.1.1): 32 or 56 bytes, or an uncompressed point on the curve.
func (c CipherSuite) validHPKEKey(key []byte) bool {
	p := c.params()
	if p == nil || len(key) != p.kem.size {
		return false
	}
	if p.kem.curve == nil {
		return true
	}
	_, err := p.kem.curve.NewPublicKey(key)
	return err == nil
}

// verifier returns a function that verifies signatures of key with the suite's algorithm (RFC 9420
// §5.1.2). It returns nil if key is not a public key of the algorithm. That is Ed25519 or Ed448 with
// signatures R ‖ S, or ECDSA with an uncompressed point as key and DER signatures over the suite's
// hash.
func (c CipherSuite) verifier(key []byte) func(content, signature []byte) bool {
	p := c.params()
	if p == nil || len(key) != p.sign.keySize {
		return nil
	}
	if p.sign.curve == nil {
		return func(content, signature []byte) bool {
			return len(signature) == p.sign.size && p.sign.verifyBy(key, content, signature)
		}
	}
	pub, err := ecdsa.ParseUncompressedPublicKey(p.sign.curve, key)
	if err != nil {
		return nil
	}
	return func(content, signature []byte) bool {
		h := p.hash.New()
		h.Write(content)
		return ecdsa.VerifyASN1(pub, h.Sum(nil), signature)
	}
}

// wrongHPKEKey and wrongSignatureKey say what is wrong with a public key of the suite. Both say
// what to do about forms that known libraries write.
func (c CipherSuite) wrongHPKEKey(key []byte) string { return wrongKey(key, c.params().kem.size) }
func (c CipherSuite) wrongSignatureKey(key []byte) string {
	return wrongKey(key, c.params().sign.keySize)
}

// wrongKey says why key is not a public key of size bytes. An uncompressed point has an odd size,
// a compressed one has a byte more than half of it.
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
