package mls

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"hash"
	"testing"

	"github.com/cloudflare/circl/hpke"
	"golang.org/x/crypto/chacha20poly1305"
)

// The working group's vectors have their GroupInfos inside Welcomes. Tests decrypt these with the
// recipient's private key. Only this file needs a part of the key schedule (RFC 9420 §8).

type externalPSK struct {
	ID  hexBytes `json:"psk_id"`
	PSK hexBytes `json:"psk"`
}

type joinVector struct {
	passiveVector
	InitPriv     hexBytes      `json:"init_priv"`
	SignerPub    hexBytes      `json:"signer_pub"`
	ExternalPSKs []externalPSK `json:"external_psks"`
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// testSuite is a suite's algorithms that need secrets.
type testSuite struct {
	CipherSuite
	kem     hpke.KEM
	kdf     hpke.KDF
	aead    hpke.AEAD
	keySize int // of the AEAD
}

func algorithmsOf(c CipherSuite) testSuite {
	switch c {
	case SuiteX25519AES128:
		return testSuite{c, hpke.KEM_X25519_HKDF_SHA256, hpke.KDF_HKDF_SHA256, hpke.AEAD_AES128GCM, 16}
	case SuiteP256AES128:
		return testSuite{c, hpke.KEM_P256_HKDF_SHA256, hpke.KDF_HKDF_SHA256, hpke.AEAD_AES128GCM, 16}
	case SuiteX25519ChaCha20:
		return testSuite{c, hpke.KEM_X25519_HKDF_SHA256, hpke.KDF_HKDF_SHA256, hpke.AEAD_ChaCha20Poly1305, 32}
	case SuiteX448AES256:
		return testSuite{c, hpke.KEM_X448_HKDF_SHA512, hpke.KDF_HKDF_SHA512, hpke.AEAD_AES256GCM, 32}
	case SuiteP521AES256:
		return testSuite{c, hpke.KEM_P521_HKDF_SHA512, hpke.KDF_HKDF_SHA512, hpke.AEAD_AES256GCM, 32}
	case SuiteX448ChaCha20:
		return testSuite{c, hpke.KEM_X448_HKDF_SHA512, hpke.KDF_HKDF_SHA512, hpke.AEAD_ChaCha20Poly1305, 32}
	}
	return testSuite{c, hpke.KEM_P384_HKDF_SHA384, hpke.KDF_HKDF_SHA384, hpke.AEAD_AES256GCM, 32}
}

func (s testSuite) extract(t testing.TB, salt, secret []byte) []byte {
	return must(hkdf.Extract(func() hash.Hash { return s.newHash() }, secret, salt))(t)
}

func (s testSuite) expandWithLabel(t testing.TB, secret []byte, label string, context []byte, n int) []byte {
	info := cat(u16(uint16(n)), vec([]byte("MLS 1.0 "+label)), vec(context))
	return must(hkdf.Expand(func() hash.Hash { return s.newHash() }, secret, string(info), n))(t)
}

// decryptGroupInfo returns the bare GroupInfo of a vector's Welcome.
func (v *joinVector) decryptGroupInfo(t testing.TB) []byte {
	t.Helper()
	k := mustParse(t, v.KeyPackage)
	r := newReader("Welcome", v.Welcome[6:])
	var kem, ciphertext []byte
	r.vector("secrets", func(r *reader) {
		ref := r.opaque("ref")
		enc, sealed := r.opaque("kem_output"), r.opaque("ciphertext")
		if string(ref) == string(k.Ref) {
			kem, ciphertext = enc, sealed
		}
	})
	info := r.opaque("encrypted_group_info")
	if err := r.finish(); err != nil {
		t.Fatal(err)
	}
	suite := algorithmsOf(v.CipherSuite)
	scheme := suite.kem.Scheme()
	key := make([]byte, max(0, scheme.PrivateKeySize()-len(v.InitPriv))) // some of P-521 lack their first zeros
	priv := must(scheme.UnmarshalBinaryPrivateKey(append(key, v.InitPriv...)))(t)
	recipient := must(hpke.NewSuite(suite.kem, suite.kdf, suite.aead).NewReceiver(priv,
		cat(vec([]byte("MLS 1.0 Welcome")), vec(info))))(t)
	opener := must(recipient.Setup(kem))(t)
	return v.decryptWith(t, must(opener.Open(ciphertext, nil))(t), info)
}

// decryptWith decrypts an encrypted_group_info with a GroupSecrets.
func (v *joinVector) decryptWith(t testing.TB, secrets, info []byte) []byte {
	t.Helper()
	r := newReader("GroupSecrets", secrets)
	joiner := r.opaque("joiner_secret")
	if r.optional("path_secret") {
		r.opaque("path_secret")
	}
	var ids [][]byte
	var psks [][]byte
	r.vector("psks", func(r *reader) {
		start := r.s
		r.preSharedKeyID()
		ids = append(ids, r.since(start))
		psks = append(psks, nil)
		for _, p := range v.ExternalPSKs {
			if id := vec(p.ID); string(r.since(start)[1:1+len(id)]) == string(id) {
				psks[len(psks)-1] = p.PSK
			}
		}
	})
	if err := r.finish(); err != nil {
		t.Fatal(err)
	}
	suite := algorithmsOf(v.CipherSuite)
	size := suite.hashSize()
	psk := make([]byte, size)
	for i, id := range ids {
		label := cat(id, u16(uint16(i), uint16(len(ids))))
		input := suite.expandWithLabel(t, suite.extract(t, make([]byte, size), psks[i]), "derived psk", label, size)
		psk = suite.extract(t, input, psk)
	}
	welcome := suite.expandWithLabel(t, suite.extract(t, joiner, psk), "welcome", nil, size)
	nonce := suite.expandWithLabel(t, welcome, "nonce", nil, 12)
	key := suite.expandWithLabel(t, welcome, "key", nil, suite.keySize)
	var aead cipher.AEAD
	if suite.aead == hpke.AEAD_ChaCha20Poly1305 {
		aead = must(chacha20poly1305.New(key))(t)
	} else {
		aead = must(cipher.NewGCM(must(aes.NewCipher(key))(t)))(t)
	}
	return must(aead.Open(nil, nonce, info, nil))(t)
}

// group verifies the GroupInfo of a vector's Welcome.
func (v *joinVector) group(t testing.TB) (*Group, *GroupInfo) {
	t.Helper()
	info := must(ParseGroupInfo(v.decryptGroupInfo(t)))(t)
	var tree *Tree
	if v.RatchetTree != nil {
		tree = must(ParseTree(v.CipherSuite, v.RatchetTree))(t)
	} else {
		tree = must(info.Tree())(t)
	}
	return must(info.Verify(tree))(t), &info
}
