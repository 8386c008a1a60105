package mls

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/mlkem"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/cloudflare/circl/sign"
	"github.com/cloudflare/circl/sign/ed448"
	"github.com/cloudflare/circl/sign/mldsa/mldsa44"
	"github.com/cloudflare/circl/sign/mldsa/mldsa65"
	"github.com/cloudflare/circl/sign/mldsa/mldsa87"
	"golang.org/x/crypto/cryptobyte"
)

// Objects that the tests build themselves. These tests run without the working group's vectors.

// cat joins encoded parts.
func cat(parts ...[]byte) []byte { return slices.Concat(parts...) }

// vec encodes the parts as one opaque<V>.
func vec(parts ...[]byte) []byte {
	content := cat(parts...)
	return append(appendVarint(nil, len(content)), content...)
}

func ints(add func(*cryptobyte.Builder)) []byte {
	var b cryptobyte.Builder
	add(&b)
	return b.BytesOrPanic()
}

func u8(v uint8) []byte   { return []byte{v} }
func u32(v uint32) []byte { return ints(func(b *cryptobyte.Builder) { b.AddUint32(v) }) }
func u64(v uint64) []byte { return ints(func(b *cryptobyte.Builder) { b.AddUint64(v) }) }
func u16(vs ...uint16) []byte {
	return ints(func(b *cryptobyte.Builder) {
		for _, v := range vs {
			b.AddUint16(v)
		}
	})
}

func ext(t ExtensionType, data ...byte) []byte { return cat(u16(uint16(t)), vec(data)) }

// framed puts an object into an MLSMessage.
func framed(f WireFormat, object []byte) []byte { return cat(u16(1, uint16(f)), object) }

// testNow is a time within the lifetime of test KeyPackages.
var testNow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// keyPackageSpec says how to build a KeyPackage. newSpec returns the spec of a valid one.
type keyPackageSpec struct {
	version, suite        uint16
	initKey, encKey       []byte
	signer                crypto.Signer
	sigKey                []byte
	credential            []byte
	versions, suites      []uint16
	capExts, credentials  []uint16
	capProposals          []uint16
	source                uint8
	notBefore, notAfter   uint64
	leafExts, packageExts []byte
}

func newSpec(t testing.TB, suite CipherSuite) *keyPackageSpec {
	t.Helper()
	s := &keyPackageSpec{
		version:     1,
		suite:       uint16(suite),
		initKey:     newHPKEKey(t, suite),
		encKey:      newHPKEKey(t, suite),
		credential:  basic("did:plc:alice"),
		versions:    []uint16{1, 0x0a0a},
		suites:      []uint16{0x1a1a, uint16(suite)},
		capExts:     []uint16{0x2a2a},
		credentials: []uint16{1, 0x3a3a},
		source:      1,
		notBefore:   uint64(testNow.Unix()) - 3600,
		notAfter:    uint64(testNow.Unix()) + 30*86400,
		leafExts:    ext(0x2a2a, 1, 2, 3),
		packageExts: ext(0x4a4a),
	}
	s.signer, s.sigKey = newSigner(t, suite)
	return s
}

func newSigner(t testing.TB, suite CipherSuite) (signer crypto.Signer, public []byte) {
	t.Helper()
	switch p := suite.params(); {
	case p.sign.curve != nil:
		key := must(ecdsa.GenerateKey(p.sign.curve, rand.Reader))(t)
		return key, must(key.PublicKey.Bytes())(t)
	case p.sign.keySize == ed25519.PublicKeySize:
		pub, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key, pub
	default:
		for _, s := range []sign.Scheme{ed448.Scheme(), mldsa44.Scheme(), mldsa65.Scheme(), mldsa87.Scheme()} {
			if s.PublicKeySize() == p.sign.keySize {
				pub, key, err := s.GenerateKey()
				if err != nil {
					t.Fatal(err)
				}
				return key.(crypto.Signer), must(pub.MarshalBinary())(t)
			}
		}
		t.Fatalf("no signer for %s", suite)
		return nil, nil
	}
}

// newHPKEKey returns a new public key of the suite's KEM.
func newHPKEKey(t testing.TB, suite CipherSuite) []byte {
	t.Helper()
	curves := map[int]ecdh.Curve{32: ecdh.X25519(), 65: ecdh.P256(), 97: ecdh.P384(), 133: ecdh.P521()}
	switch size := suite.params().kem.keySize; size {
	case 56: // X448: any bytes
		return random(56)
	case mlkem.EncapsulationKeySize768:
		return must(mlkem.GenerateKey768())(t).EncapsulationKey().Bytes()
	case mlkem.EncapsulationKeySize1024:
		return must(mlkem.GenerateKey1024())(t).EncapsulationKey().Bytes()
	case mlkem.EncapsulationKeySize768 + 32: // X-Wing
		return cat(must(mlkem.GenerateKey768())(t).EncapsulationKey().Bytes(), random(32))
	default:
		return must(curves[size].GenerateKey(rand.Reader))(t).PublicKey().Bytes()
	}
}

// newKEMOutput returns what encrypting to a key of the suite could put in front of the ciphertext.
func newKEMOutput(t testing.TB, suite CipherSuite) []byte {
	t.Helper()
	if p := suite.params(); p.kem.outputSize != p.kem.keySize {
		return random(p.kem.outputSize)
	}
	return newHPKEKey(t, suite)
}

func random(size int) []byte {
	b := make([]byte, size)
	rand.Read(b)
	return b
}

func basic(identity string) []byte { return cat(u16(1), vec([]byte(identity))) }

// sign is SignWithLabel. It is written again here, so that the tests do not depend on signContent.
func (s *keyPackageSpec) sign(t testing.TB, label string, content []byte) []byte {
	t.Helper()
	message := cat(vec([]byte("MLS 1.0 "+label)), vec(content))
	opts := crypto.Hash(0)
	if p := CipherSuite(s.suite).params(); p != nil && p.sign.curve != nil {
		opts = map[int]crypto.Hash{65: crypto.SHA256, 97: crypto.SHA384, 133: crypto.SHA512}[p.sign.keySize]
		h := opts.New()
		h.Write(message)
		message = h.Sum(nil)
	}
	sig, err := s.signer.Sign(rand.Reader, message, opts)
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

func (s *keyPackageSpec) leaf(t testing.TB) []byte {
	t.Helper()
	tbs := cat(vec(s.encKey), vec(s.sigKey), s.credential,
		vec(u16(s.versions...)), vec(u16(s.suites...)), vec(u16(s.capExts...)), vec(u16(s.capProposals...)),
		vec(u16(s.credentials...)),
		u8(s.source))
	switch s.source {
	case 1:
		tbs = cat(tbs, u64(s.notBefore), u64(s.notAfter))
	case 3:
		tbs = cat(tbs, vec([]byte("parent hash")))
	}
	tbs = cat(tbs, vec(s.leafExts))
	return cat(tbs, vec(s.sign(t, "LeafNodeTBS", tbs)))
}

// build returns the bare KeyPackage.
func (s *keyPackageSpec) build(t testing.TB) []byte {
	t.Helper()
	tbs := cat(u16(s.version, s.suite), vec(s.initKey), s.leaf(t), vec(s.packageExts))
	return cat(tbs, vec(s.sign(t, "KeyPackageTBS", tbs)))
}

// leafOf returns a LeafNode of the given source (1 key_package, 2 update, 3 commit).
func leafOf(t testing.TB, source uint8) []byte {
	t.Helper()
	s := newSpec(t, SuiteX25519AES128)
	s.source = source
	return s.leaf(t)
}

// Proposals of every type, as ProposalOrRef's proposal, by name.
func testProposals(t testing.TB) map[string][]byte {
	t.Helper()
	return map[string][]byte{
		"add":                      cat(u16(1), newSpec(t, SuiteX25519AES128).build(t)),
		"update":                   cat(u16(2), leafOf(t, 2)),
		"remove":                   cat(u16(3), u32(7)),
		"psk external":             cat(u16(4), u8(1), vec([]byte("id")), vec([]byte("nonce"))),
		"psk resumption":           cat(u16(4), u8(2), u8(1), vec([]byte("group")), u64(1<<60), vec([]byte("nonce"))),
		"reinit":                   cat(u16(5), vec([]byte("new group")), u16(2, 0xf000), vec(ext(9))),
		"external_init":            cat(u16(6), vec([]byte("kem output"))),
		"group_context_extensions": cat(u16(7), vec(ext(3, 0, 0, 0), ext(5))),
		"self_remove":              u16(10),
		"custom":                   cat(u16(0xf001), []byte("of any content")),
	}
}

// testCommit returns a Commit with a proposal of every type that can be in one by value, two by
// reference, and a path. The opaque proposal comes last, because it hides what follows.
func testCommit(t testing.TB) []byte {
	t.Helper()
	var proposals []byte
	all := testProposals(t)
	for name, p := range all {
		if name != "custom" && name != "self_remove" {
			proposals = cat(proposals, u8(1), p)
		}
	}
	ref := cat(u8(2), vec(make([]byte, 32)))
	node := cat(vec(make([]byte, 32)), vec(vec(make([]byte, 32)), vec(make([]byte, 48)), vec([]byte{1}), vec([]byte{2})))
	return cat(vec(proposals, ref, ref, u8(1), all["custom"]), u8(1), leafOf(t, 3), vec(node, node))
}

const testGroup = "group-0123456789"

// content returns a FramedContent.
func content(epoch uint64, sender []byte, t ContentType, body []byte) []byte {
	return cat(vec([]byte(testGroup)), u64(epoch), sender, vec([]byte("aad")), u8(uint8(t)), body)
}

func member(leaf uint32) []byte { return cat(u8(1), u32(leaf)) }

var testTag = vec([]byte("a tag of thirty-two bytes at all"))

// publicCommit returns a PublicMessage with a member's commit.
func publicCommit(epoch uint64, commit []byte) []byte {
	return framed(1, cat(content(epoch, member(3), ContentTypeCommit, commit), vec(make([]byte, 64)), testTag, testTag))
}

// privateMessage returns a PrivateMessage with the given size of ciphertext, in bytes.
func privateMessage(epoch uint64, t ContentType, size int) []byte {
	return framed(2, cat(vec([]byte(testGroup)), u64(epoch), u8(uint8(t)), vec([]byte("aad")),
		vec(make([]byte, 28)), vec(make([]byte, size))))
}

// testWelcome returns a Welcome of suite 1 for the references.
func testWelcome(refs ...[]byte) []byte {
	var secrets []byte
	for _, ref := range refs {
		secrets = append(secrets, cat(vec(ref), vec(make([]byte, 32)), vec(make([]byte, 80)))...)
	}
	return framed(3, cat(u16(1), vec(secrets), vec(make([]byte, 200))))
}

// groupInfoSpec says how to build a GroupInfo.
type groupInfoSpec struct {
	suite        uint16
	group        []byte
	epoch        uint64
	context, own []byte
}

func newGroupInfo() groupInfoSpec {
	return groupInfoSpec{suite: 1, group: []byte(testGroup), epoch: 5}
}

// build returns the bare GroupInfo.
func (s groupInfoSpec) build() []byte {
	return cat(u16(1, s.suite), vec(s.group), u64(s.epoch), vec([]byte("tree hash")), vec([]byte("transcript")),
		vec(s.context), vec(s.own), vec([]byte("confirmation")), u32(9), vec([]byte("signature")))
}

// testTree returns a ratchet_tree of two leaves, their parent, a blank parent, and a third leaf.
func testTree(t testing.TB) []byte {
	t.Helper()
	leaf := func(source uint8) []byte { return cat(u8(1), u8(1), leafOf(t, source)) }
	parent := cat(u8(1), u8(2), vec(make([]byte, 32)), vec(make([]byte, 32)), vec(u32(1)))
	return vec(leaf(1), parent, leaf(2), u8(0), leaf(3))
}
