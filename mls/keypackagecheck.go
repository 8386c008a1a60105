package mls

import (
	"bytes"
	"strconv"
	"time"
)

// MaxLifetime is the longest total lifetime of a KeyPackage: twelve weeks and one hour. The hour
// allows a client to set not_before in the past. RFC 9420 §7.2 requires every application to define
// a maximum.
const MaxLifetime = 7_261_200 * time.Second

// ClockSkew is how far in the future not_before may be.
const ClockSkew = 5 * time.Minute

// Check makes the checks of RFC 9420 §10.1 and §7.3 that need no signature. They are:
//
//   - the suite is supported, and the leaf was made for a KeyPackage;
//   - the keys have the suite's form and differ from each other;
//   - now is within the lifetime, which is no longer than MaxLifetime;
//   - the capabilities list the version, the suite, the credential and the leaf's own extensions.
//
// The caller checks whether the identity is the publisher's (BelongsTo).
//
// The capabilities need not list extensions of the KeyPackage itself. By §13.4 clients ignore
// unknown extensions, and existing clients do not list last_resort.
//
// Errors: ErrUnsupported, ErrMalformed, ErrExpired, ErrLifetimeTooLong.
func (k *KeyPackage) Check(now time.Time) error {
	if !k.CipherSuite.Supported() {
		return k.refuse(ErrUnsupported, "cipher_suite", "10.1", k.CipherSuite.String())
	}
	if k.leaf.source != leafFromKeyPackage {
		return k.refuse(ErrMalformed, "LeafNode.leaf_node_source", "7.3", "not key_package")
	}
	for _, step := range []func() error{k.checkKeys, k.checkCapabilities} {
		if err := step(); err != nil {
			return err
		}
	}
	return k.checkLifetime(now)
}

func (k *KeyPackage) checkKeys() error {
	if !k.CipherSuite.validHPKEKey(k.InitKey) {
		return k.refuse(ErrMalformed, "init_key", "5.1.1", k.CipherSuite.wrongHPKEKey(k.InitKey))
	}
	if !k.CipherSuite.validHPKEKey(k.EncryptionKey) {
		return k.refuse(ErrMalformed, "LeafNode.encryption_key", "5.1.1", k.CipherSuite.wrongHPKEKey(k.EncryptionKey))
	}
	if k.CipherSuite.verifier(k.SignatureKey) == nil {
		return k.refuse(ErrMalformed, "LeafNode.signature_key", "5.1.1", k.CipherSuite.wrongSignatureKey(k.SignatureKey))
	}
	if bytes.Equal(k.InitKey, k.EncryptionKey) {
		return k.refuse(ErrMalformed, "init_key", "10.1", "equal to encryption_key")
	}
	return nil
}

func (k *KeyPackage) checkCapabilities() error {
	c := &k.leaf.capabilities
	switch {
	case !c.versions.contains(uint16(k.Version)):
		return k.refuse(ErrMalformed, "Capabilities.versions", "7.2", "own version not listed")
	case !c.cipherSuites.contains(uint16(k.CipherSuite)):
		return k.refuse(ErrMalformed, "Capabilities.cipher_suites", "7.2", "own cipher suite not listed")
	case !c.credentials.contains(uint16(k.CredentialType)):
		return k.refuse(ErrMalformed, "Capabilities.credentials", "7.2", "own credential type not listed")
	}
	if len(k.leaf.extensions) == 0 {
		return nil
	}
	var listed typeSet // with a set, the cost for two long lists is their sum, not their product
	for t := range c.extensions.all() {
		listed.add(ExtensionType(t))
	}
	for t := range k.leaf.extensions.All() {
		if !t.isDefault() && !listed.has(t) {
			return k.refuse(ErrMalformed, "Capabilities.extensions", "7.3",
				"leaf extension "+strconv.Itoa(int(t))+" not listed")
		}
	}
	return nil
}

func (k *KeyPackage) checkLifetime(now time.Time) error {
	switch {
	case k.NotAfter.Before(k.NotBefore):
		return k.refuse(ErrMalformed, "Lifetime", "7.2", "not_after is before not_before")
	case k.NotAfter.Sub(k.NotBefore) > MaxLifetime:
		reason := "more than " + strconv.Itoa(int(MaxLifetime/time.Second)) +
			" seconds (84 days and one hour) from not_before to not_after"
		if k.NotAfter.Equal(unixTime(endOf9999)) {
			reason += ": it has no end, which is ts-mls's default; set a lifetime"
		}
		return k.refuse(ErrLifetimeTooLong, "Lifetime", "7.2", reason)
	case k.NotBefore.After(now.Add(ClockSkew)):
		return k.refuse(ErrExpired, "Lifetime.not_before", "7.3", "in the future")
	case !k.NotAfter.After(now):
		return k.refuse(ErrExpired, "Lifetime.not_after", "7.3", "in the past")
	}
	return nil
}

func (k *KeyPackage) refuse(kind error, field, section, reason string) error {
	return &ParseError{Object: "KeyPackage", Field: field, Section: section, Reason: reason, Kind: kind}
}
