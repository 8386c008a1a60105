package mls

import (
	"errors"
	"strings"
	"testing"
)

func TestCipherSuiteNames(t *testing.T) {
	t.Parallel()
	for i, name := range []string{
		"MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519",
		"MLS_128_DHKEMP256_AES128GCM_SHA256_P256",
		"MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519",
		"MLS_256_DHKEMX448_AES256GCM_SHA512_Ed448",
		"MLS_256_DHKEMP521_AES256GCM_SHA512_P521",
		"MLS_256_DHKEMX448_CHACHA20POLY1305_SHA512_Ed448",
		"MLS_256_DHKEMP384_AES256GCM_SHA384_P384",
	} {
		c, ok := ParseCipherSuite(name)
		if !ok || c != CipherSuite(i+1) || c.String() != name || !c.Supported() {
			t.Errorf("%s: %d %v", name, c, ok)
		}
	}
	for c, name := range map[CipherSuite]string{
		0x0042: "MLS_192_MLKEM1024_AES256GCM_SHA384_P384",
		0x004D: "MLS_256_XWING_CHACHA20POLY1305_SHA256_Ed25519",
		0x004E: "MLS_128_MLKEM768X25519_AES256GCM_SHA384_Ed25519",
		0x004F: "MLS_128_MLKEM768X25519_AES128GCM_SHA256_Ed25519",
		0x0050: "MLS_128_MLKEM768_AES256GCM_SHA384_P256",
		0x0051: "MLS_192_MLKEM768_AES256GCM_SHA384_MLDSA65",
		0x0052: "MLS_128_MLKEM768X25519_CHACHA20POLY1305_SHA384_MLDSA44",
		0x0906: "MLS_256_MLKEM1024_AES256GCM_SHA512_MLDSA87",
		0x0907: "MLS_256_MLKEM1024_AES256GCM_SHA384_MLDSA87",
		0xF042: "MLS_128_MLKEM768_AES256GCM_SHA384_Ed25519",
	} {
		if got, ok := ParseCipherSuite(name); !ok || got != c || c.String() != name {
			t.Errorf("%s: %d %v", name, got, ok)
		}
	}
	for _, name := range []string{"", "0x7", "0x8", "mls_128_dhkemp256_aes128gcm_sha256_p256"} {
		if c, ok := ParseCipherSuite(name); ok {
			t.Errorf("%q is suite %d", name, c)
		}
	}
	for _, c := range []CipherSuite{0, 8, 0x0a0a} {
		if c.Supported() || c.hashSize() != 0 || c.newHash() != nil || c.verifier(nil) != nil || c.validHPKEKey(nil) {
			t.Errorf("suite %d is supported", c)
		}
	}
	if s := CipherSuite(0x0a0a).String(); s != "0xa0a" {
		t.Errorf("GREASE is %q", s)
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	_, err := ParseHeader(privateMessage(MaxEpoch+1, 1, 10))
	const want = "PrivateMessage unsupported: PrivateMessage.epoch: above 2^53-1 (RFC 9420 §6.3)"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	_, err = ParseWelcome(make([]byte, MaxWelcomeSize+1))
	if err == nil || err.Error() != "Welcome too large: 3145729 bytes, and at most 3145728 are taken" ||
		!errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	// Errors must not repeat content.
	s := newSpec(t, SuiteX25519AES128)
	s.credential = basic("did:plc:secret")
	s.notAfter = 1
	for _, err := range []error{
		mustParse(t, s.build(t)).Check(testNow),
		codecs["KeyPackage"].parse(append(s.build(t), "secret"...)),
	} {
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v", err)
		}
	}
}

func TestRefString(t *testing.T) {
	t.Parallel()
	if got := (KeyPackageRef{0xAB, 0x01}).String(); got != "ab01" {
		t.Error(got)
	}
}
