package mls

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	_ "crypto/sha256" // SHA-256, as a crypto.Hash
	_ "crypto/sha512" // SHA-384 and SHA-512

	"github.com/cloudflare/circl/sign"
	"github.com/cloudflare/circl/sign/ed448"
	"github.com/cloudflare/circl/sign/mldsa/mldsa44"
	"github.com/cloudflare/circl/sign/mldsa/mldsa65"
	"github.com/cloudflare/circl/sign/mldsa/mldsa87"
)

// The KEMs use curves (RFC 9180 §7.1), ML-KEM (FIPS 203), or X-Wing
// (draft-connolly-cfrg-xwing-kem). A key or an output of X-Wing is one of ML-KEM-768, followed by
// one of X25519.
var (
	x25519    = curveKEM(32, ecdh.X25519())
	x448      = kem{56, 56, anyBytes, anyBytes}
	p256      = curveKEM(65, ecdh.P256())
	p384      = curveKEM(97, ecdh.P384())
	p521      = curveKEM(133, ecdh.P521())
	mlkem768  = kem{1184, 1088, isReduced, anyBytes}
	mlkem1024 = kem{1568, 1568, isReduced, anyBytes}
	xwing     = kem{1216, 1120, func(key []byte) bool { return isReduced(key[:1184]) }, anyBytes}
)

// The signature algorithms. ECDSA keys are uncompressed points, and ECDSA signatures are DER. Ed448
// and ML-DSA (FIPS 204) have an empty context, because RFC 9420 §5.1.2 defines none.
var (
	signEd25519 = signature{keySize: ed25519.PublicKeySize, size: ed25519.SignatureSize,
		verifier: func(key []byte) func(content, signature []byte) bool {
			return func(content, signature []byte) bool { return ed25519.Verify(key, content, signature) }
		}}
	signEd448   = signatureOf(ed448.Scheme())
	signP256    = ecdsaSignature(65, elliptic.P256(), crypto.SHA256)
	signP384    = ecdsaSignature(97, elliptic.P384(), crypto.SHA384)
	signP521    = ecdsaSignature(133, elliptic.P521(), crypto.SHA512)
	signMLDSA44 = signatureOf(mldsa44.Scheme())
	signMLDSA65 = signatureOf(mldsa65.Scheme())
	signMLDSA87 = signatureOf(mldsa87.Scheme())
)

func anyBytes([]byte) bool { return true }

// isKey returns a function that reports whether parse accepts a key.
func isKey[K any](parse func([]byte) (K, error)) func([]byte) bool {
	return func(key []byte) bool { _, err := parse(key); return err == nil }
}

// isReduced makes the modulus check of an ML-KEM key (FIPS 203 §7.2): each coefficient of twelve
// bits is below q. A seed of 32 bytes follows the coefficients. crypto/mlkem makes this check too,
// but also expands the seed, which costs twenty times as much. A commit in a group of a thousand
// devices has two thousand keys to check, while the convo is locked.
func isReduced(key []byte) bool {
	const q, seed = 3329, 32
	for b := key[:len(key)-seed]; len(b) >= 3; b = b[3:] {
		if uint16(b[0])|uint16(b[1]&0xf)<<8 >= q || uint16(b[1])>>4|uint16(b[2])<<4 >= q {
			return false
		}
	}
	return true
}

func curveKEM(size int, curve ecdh.Curve) kem {
	return kem{size, size, isKey(curve.NewPublicKey), isKey(curve.NewPublicKey)}
}

func ecdsaSignature(keySize int, curve elliptic.Curve, hash crypto.Hash) signature {
	return signature{keySize: keySize, curve: curve, verifier: func(key []byte) func(content, signature []byte) bool {
		public, err := ecdsa.ParseUncompressedPublicKey(curve, key)
		if err != nil {
			return nil
		}
		return func(content, signature []byte) bool {
			h := hash.New()
			h.Write(content)
			return ecdsa.VerifyASN1(public, h.Sum(nil), signature)
		}
	}}
}

func signatureOf(s sign.Scheme) signature {
	keySize, size := s.PublicKeySize(), s.SignatureSize()
	return signature{keySize: keySize, size: size, verifier: func(key []byte) func(content, signature []byte) bool {
		public, err := s.UnmarshalBinaryPublicKey(key)
		if err != nil {
			return nil
		}
		return func(content, signature []byte) bool {
			return len(signature) == size && s.Verify(public, content, signature, nil)
		}
	}}
}
