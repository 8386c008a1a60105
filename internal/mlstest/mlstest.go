// Package mlstest builds MLS wire objects (RFC 9420) for tests. Their clear parts are valid, and
// KeyPackages have valid signatures. Their encrypted parts are random bytes, which a delivery
// service cannot distinguish. It is for tests of packages that must not depend on an MLS client.
// The simulator uses real clients.
package mlstest

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/mlkem"
	"crypto/rand"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"mlsd/mls"
)

// Suite is the cipher suite of everything built here, unless a device is given another.
const Suite = mls.SuiteX25519AES128

// Device is a client with its own signature key.
type Device struct {
	DID   string
	Suite mls.CipherSuite // a suite with Ed25519 signatures
	key   ed25519.PrivateKey

	once  sync.Once
	place []byte // its leaf in the trees of GroupInfo
}

// NewDevice returns a device of did.
func NewDevice(t testing.TB, did string) *Device {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Device{DID: did, Suite: Suite, key: key}
}

// Option changes a KeyPackage before it is signed.
type Option func(*spec)

type spec struct {
	notBefore, notAfter time.Time
	lastResort          bool
	initKey             []byte
	credential          []byte
}

// LastResort marks the KeyPackage as one that can be used any number of times.
func LastResort(s *spec) { s.lastResort = true }

// Lifetime sets the KeyPackage's lifetime.
func Lifetime(from, to time.Time) Option {
	return func(s *spec) { s.notBefore, s.notAfter = from, to }
}

// InitKey sets the KeyPackage's init_key.
func InitKey(key []byte) Option { return func(s *spec) { s.initKey = key } }

// Identity sets the identity in the credential. The default is the device's DID.
func Identity(identity string) Option { return func(s *spec) { s.credential = basic(identity) } }

// X509 gives the KeyPackage a credential with a certificate.
func X509(s *spec) {
	s.credential = encode(mls.CredentialTypeX509, opaque(opaque([]byte("a certificate"))))
}

func basic(identity string) []byte { return encode(mls.CredentialTypeBasic, opaque([]byte(identity))) }

// KeyPackage returns a new KeyPackage, framed, and its ref.
func (d *Device) KeyPackage(t testing.TB, options ...Option) ([]byte, mls.KeyPackageRef) {
	t.Helper()
	now := time.Now()
	// Tests can set the database's clock back, by up to a day.
	s := spec{notBefore: now.Add(-48 * time.Hour), notAfter: now.Add(30 * 24 * time.Hour), initKey: hpkeKey(t, d.Suite),
		credential: basic(d.DID)}
	for _, o := range options {
		o(&s)
	}
	var extensions []byte
	if s.lastResort {
		extensions = encode(mls.ExtensionLastResort, opaque(nil))
	}
	body := encode(mls.VersionMLS10, d.Suite, opaque(s.initKey), d.leaf(t, s), opaque(extensions))
	framed := message(mls.WireFormatKeyPackage, body, opaque(d.sign("KeyPackageTBS", body)))
	parsed, err := mls.ParseKeyPackage(framed)
	if err != nil {
		t.Fatalf("the KeyPackage that was built does not parse: %v", err)
	}
	return framed, parsed.Ref
}

// leaf returns a LeafNode for a KeyPackage.
func (d *Device) leaf(t testing.TB, s spec) []byte {
	t.Helper()
	leaf := d.leafContent(t, s.credential, leafFromKeyPackage, encode(s.notBefore.Unix(), s.notAfter.Unix()))
	return encode(leaf, opaque(d.sign("LeafNodeTBS", leaf)))
}

// leafIn returns a LeafNode made for its place in a group. bySource is what its source adds.
func (d *Device) leafIn(t testing.TB, source uint8, bySource, group []byte, index uint32) []byte {
	t.Helper()
	leaf := d.leafContent(t, basic(d.DID), source, bySource)
	return encode(leaf, opaque(d.sign("LeafNodeTBS", encode(leaf, opaque(group), index))))
}

// Values of leaf_node_source (RFC 9420 §7.2).
const (
	leafFromKeyPackage = 1
	leafFromUpdate     = 2
	leafFromCommit     = 3
)

// leafContent returns a LeafNode up to its signature.
func (d *Device) leafContent(t testing.TB, credential []byte, source uint8, bySource []byte) []byte {
	t.Helper()
	return encode(opaque(hpkeKey(t, d.Suite)), opaque(d.key.Public().(ed25519.PublicKey)),
		credential,
		// Its capabilities: versions, suites, extensions, proposals, credentials.
		opaque(encode(mls.VersionMLS10)), opaque(encode(d.Suite)), opaque(nil),
		opaque(encode(mls.ProposalSelfRemove, customProposal)), opaque(encode(mls.CredentialTypeBasic)),
		source, bySource, opaque(nil))
}

// Again returns the same device with a new leaf, as after a group removed it and added it again.
func (d *Device) Again() *Device { return &Device{DID: d.DID, Suite: d.Suite, key: d.key} }

// Update gives the device a new leaf, made for its place in the group.
func (d *Device) Update(t testing.TB, group []byte, index uint32) {
	t.Helper()
	d.once.Do(func() {})
	d.place = d.leafIn(t, leafFromUpdate, nil, group, index)
}

// sign is SignWithLabel (RFC 9420 §5.1.2).
func (d *Device) sign(label string, content []byte) []byte {
	return ed25519.Sign(d.key, encode(opaque([]byte("MLS 1.0 "+label)), opaque(content)))
}

// Message returns a PrivateMessage with application data. body is used as the ciphertext.
func Message(group []byte, epoch int64, body string) []byte {
	return private(group, epoch, mls.ContentTypeApplication, body)
}

// Proposal returns a PrivateMessage with a proposal.
func Proposal(group []byte, epoch int64, body string) []byte {
	return private(group, epoch, mls.ContentTypeProposal, body)
}

// Commit returns a PrivateMessage with a commit of the given epoch, which creates epoch+1.
func Commit(group []byte, epoch int64, body string) []byte {
	return private(group, epoch, mls.ContentTypeCommit, body)
}

func private(group []byte, epoch int64, kind mls.ContentType, body string) []byte {
	return message(mls.WireFormatPrivateMessage,
		opaque(group), epoch, kind, opaque(nil), opaque(make([]byte, 28)), opaque([]byte(body)))
}

// Welcome returns a Welcome for the KeyPackages.
func Welcome(t testing.TB, refs ...mls.KeyPackageRef) []byte {
	t.Helper()
	return WelcomeIn(t, Suite, refs...)
}

// WelcomeIn is Welcome for a group of another suite.
func WelcomeIn(t testing.TB, suite mls.CipherSuite, refs ...mls.KeyPackageRef) []byte {
	t.Helper()
	output := hpkeKey(t, Suite)
	if suite == mls.SuiteXWing {
		output = make([]byte, 1120)
	}
	random := make([]byte, 64)
	_, _ = rand.Read(random) // it never fails
	sealed := opaque(random)
	var secrets []byte
	for _, ref := range refs {
		secrets = encode(secrets, opaque(ref), opaque(output), sealed)
	}
	return message(mls.WireFormatWelcome, suite, opaque(secrets), sealed)
}

// GroupInfo returns a GroupInfo of the group at epoch, with its ratchet tree. The first member
// signs it. The tree is as after adding the members one by one without a path: every parent is
// blank.
func GroupInfo(t testing.TB, group []byte, epoch int64, members ...*Device) []byte {
	t.Helper()
	return GroupInfoWith(t, nil, group, epoch, members...)
}

// GroupInfoWith is GroupInfo with extensions in the GroupContext.
func GroupInfoWith(t testing.TB, context, group []byte, epoch int64, members ...*Device) []byte {
	t.Helper()
	var nodes []byte
	for i, m := range members {
		if i > 0 {
			nodes = append(nodes, 0)
		}
		m.once.Do(func() {
			m.place = m.leaf(t, spec{notBefore: time.Now(), notAfter: time.Now().Add(time.Hour),
				credential: basic(m.DID)})
		})
		nodes = append(append(nodes, 1, 1), m.place...)
	}
	tree := opaque(nodes)
	parsed, err := mls.ParseTree(members[0].Suite, tree)
	if err != nil {
		t.Fatalf("the tree that was built does not parse: %v", err)
	}
	info := encode(mls.VersionMLS10, members[0].Suite, opaque(group), epoch, opaque(parsed.Hash()),
		opaque(make([]byte, 32)), opaque(context), opaque(encode(mls.ExtensionRatchetTree, opaque(tree))),
		opaque(make([]byte, 32)), uint32(0))
	return message(mls.WireFormatGroupInfo, info, opaque(members[0].sign("GroupInfoTBS", info)))
}

func message(format mls.WireFormat, object ...any) []byte {
	return encode(mls.VersionMLS10, format, encode(object...))
}

// hpkeKey returns a new public key of the suite's KEM: X25519, with ML-KEM-768 before it in X-Wing.
func hpkeKey(t testing.TB, suite mls.CipherSuite) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if suite != mls.SuiteXWing {
		return key.PublicKey().Bytes()
	}
	pq, err := mlkem.GenerateKey768()
	if err != nil {
		t.Fatal(err)
	}
	return append(pq.EncapsulationKey().Bytes(), key.PublicKey().Bytes()...)
}

// opaque encodes opaque<V>: a minimal variable-size length and the bytes (RFC 9420 §2.1.2).
func opaque(content []byte) []byte {
	switch n := len(content); {
	case n < 1<<6:
		return encode(uint8(n), content)
	case n < 1<<14:
		return encode(uint16(n)|1<<14, content)
	default:
		return encode(uint32(n)|2<<30, content)
	}
}

// encode writes numbers in network byte order, and bytes as they are.
func encode(parts ...any) (b []byte) {
	for _, part := range parts {
		var err error
		if b, err = binary.Append(b, binary.BigEndian, part); err != nil {
			panic(err) // a part without a fixed size
		}
	}
	return b
}
