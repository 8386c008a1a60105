package mls

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// KeyPackage is published by a client, so that others can add the client to groups while it is
// offline (RFC 9420 §10). Byte slices alias the parsed input.
type KeyPackage struct {
	Version       ProtocolVersion
	CipherSuite   CipherSuite
	InitKey       []byte // HPKE public key, used once
	EncryptionKey []byte // HPKE public key of the leaf
	SignatureKey  []byte // the same in all KeyPackages of one device, which it identifies

	CredentialType CredentialType
	Identity       string // identity of a basic credential, "" otherwise; not checked to be UTF-8

	// NotBefore and NotAfter are the first and the last second of the lifetime, in UTC. Both are
	// zero if the leaf has no lifetime; Check refuses such a leaf. A time after the year 9999
	// becomes the end of the year 9999.
	NotBefore, NotAfter time.Time

	LastResort bool       // may be delivered when the owner has no other KeyPackage left
	Extensions Extensions // extensions of the KeyPackage, not of its leaf

	// Ref identifies the KeyPackage in a Welcome. It is nil if the RFC does not define the cipher
	// suite, because then the hash is not known.
	Ref KeyPackageRef
	// Raw is the bare KeyPackage, without MLSMessage framing.
	Raw []byte

	leaf      leafNode
	tbs       []byte // KeyPackageTBS
	signature []byte
}

// ParseKeyPackage parses a KeyPackage, bare or framed as an MLSMessage (see the package comment).
// It checks structure only. Check checks lifetime and keys, and VerifySignatures the signatures.
//
// Errors: ErrTooLarge, ErrMalformed, ErrUnsupported.
func ParseKeyPackage(msg []byte) (*KeyPackage, error) {
	if err := checkSize("KeyPackage", msg, MaxKeyPackageSize); err != nil {
		return nil, err
	}
	r := newReader("KeyPackage", unframe(msg, WireFormatKeyPackage))
	k := r.keyPackage()
	if err := r.finish(); err != nil {
		return nil, err
	}
	if err := checkSize("KeyPackage", msg, k.CipherSuite.Limits().KeyPackage); err != nil {
		return nil, err
	}
	k.setDerived()
	return &k, nil
}

// keyPackage reads a bare KeyPackage. It does not set the fields that setDerived sets.
func (r *reader) keyPackage() (k KeyPackage) {
	prev := r.enter("KeyPackage", "10")
	start := r.s
	k.Version = r.version()
	k.CipherSuite = CipherSuite(r.u16("cipher_suite"))
	k.InitKey = r.opaque("init_key")
	k.leaf = r.leafNode()
	k.Extensions = r.extensions("extensions")
	k.tbs = r.since(start)
	k.signature = r.opaque("signature")
	k.Raw = r.since(start)
	r.in = prev
	return k
}

// setDerived sets the fields that are computed from the others.
func (k *KeyPackage) setDerived() {
	k.EncryptionKey = k.leaf.encryptionKey
	k.SignatureKey = k.leaf.signatureKey
	k.CredentialType = k.leaf.credentialType
	k.Identity = string(k.leaf.identity)
	k.LastResort = k.Extensions.Has(ExtensionLastResort)
	k.Ref = k.CipherSuite.refHash("MLS 1.0 KeyPackage Reference", k.Raw)
	if k.leaf.source == leafFromKeyPackage {
		k.NotBefore = unixTime(k.leaf.notBefore)
		k.NotAfter = unixTime(k.leaf.notAfter)
	}
}

// DeviceID returns the id of the device that made the KeyPackage: the SHA-256 of its signature key,
// in lower-case hexadecimal.
func (k *KeyPackage) DeviceID() string { return deviceID(k.SignatureKey) }

func deviceID(signatureKey []byte) string {
	sum := sha256.Sum256(signatureKey)
	return hex.EncodeToString(sum[:])
}

// BelongsTo reports whether did is the KeyPackage's identity. Its basic credential must be the DID
// alone, or the DID followed by "#" and a device name.
func (k *KeyPackage) BelongsTo(did string) bool {
	if k.CredentialType != CredentialTypeBasic || did == "" {
		return false
	}
	rest, ok := strings.CutPrefix(k.Identity, did)
	return ok && (rest == "" || rest[0] == '#')
}

// endOf9999 is the last second of the year 9999, the last year of RFC 3339, in seconds since the
// Unix epoch.
const endOf9999 = 253402300799

// unixTime converts seconds since the Unix epoch. The result is at most the end of the year 9999.
func unixTime(seconds uint64) time.Time {
	return time.Unix(int64(min(seconds, endOf9999)), 0).UTC()
}

// unframe removes the MLSMessage header from a GroupInfo or KeyPackage if it has one. The package
// comment explains how the first six bytes show this.
func unframe(msg []byte, format WireFormat) []byte {
	framed := len(msg) >= 6 &&
		msg[0] == 0 && msg[1] == byte(VersionMLS10) &&
		msg[2] == 0 && msg[3] == byte(format) &&
		msg[4] == 0 && msg[5] == byte(VersionMLS10)
	if framed {
		return msg[4:]
	}
	return msg
}
