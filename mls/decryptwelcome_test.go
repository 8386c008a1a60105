package mls

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hpke"
	"crypto/sha256"
	"testing"

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

func extract(t testing.TB, salt, secret []byte) []byte {
	return must(hkdf.Extract(sha256.New, secret, salt))(t)
}

func expandWithLabel(t testing.TB, secret []byte, label string, context []byte, n int) []byte {
	info := cat(u16(uint16(n)), vec([]byte("MLS 1.0 "+label)), vec(context))
	return must(hkdf.Expand(sha256.New, secret, string(info), n))(t)
}

// decryptGroupInfo returns the bare GroupInfo of a vector's Welcome. The suite must be 1, 2 or 3.
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
	aead := hpke.AES128GCM()
	kemID := uint16(0x0020)
	if v.CipherSuite == SuiteP256AES128 {
		kemID = 0x0010
	}
	if v.CipherSuite == SuiteX25519ChaCha20 {
		aead = hpke.ChaCha20Poly1305()
	}
	priv := must(must(hpke.NewKEM(kemID))(t).NewPrivateKey(v.InitPriv))(t)
	recipient := must(hpke.NewRecipient(kem, priv, hpke.HKDFSHA256(), aead, cat(vec([]byte("MLS 1.0 Welcome")), vec(info))))(t)
	return v.decryptWith(t, must(recipient.Open(nil, ciphertext))(t), info)
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
	psk := make([]byte, sha256.Size)
	for i, id := range ids {
		label := cat(id, u16(uint16(i), uint16(len(ids))))
		input := expandWithLabel(t, extract(t, make([]byte, sha256.Size), psks[i]), "derived psk", label, sha256.Size)
		psk = extract(t, input, psk)
	}
	welcome := expandWithLabel(t, extract(t, joiner, psk), "welcome", nil, sha256.Size)
	nonce := expandWithLabel(t, welcome, "nonce", nil, 12)
	var aead cipher.AEAD
	if v.CipherSuite == SuiteX25519ChaCha20 {
		aead = must(chacha20poly1305.New(expandWithLabel(t, welcome, "key", nil, 32)))(t)
	} else {
		aead = must(cipher.NewGCM(must(aes.NewCipher(expandWithLabel(t, welcome, "key", nil, 16)))(t)))(t)
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
