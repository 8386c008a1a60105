package mls

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var supportedSuites = slices.Sorted(maps.Keys(suites))

func mustParse(t testing.TB, data []byte) *KeyPackage {
	t.Helper()
	k, err := ParseKeyPackage(data)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestParseKeyPackage(t *testing.T) {
	t.Parallel()
	for _, suite := range supportedSuites {
		t.Run(suite.String(), func(t *testing.T) {
			t.Parallel()
			s := newSpec(t, suite)
			s.packageExts = cat(s.packageExts, ext(ExtensionLastResort))
			bare := s.build(t)
			k := mustParse(t, framed(5, bare))
			ref := suite.newHash()
			ref.Write(cat(vec([]byte("MLS 1.0 KeyPackage Reference")), vec(bare)))
			want := &KeyPackage{
				Version:        VersionMLS10,
				CipherSuite:    suite,
				InitKey:        s.initKey,
				EncryptionKey:  s.encKey,
				SignatureKey:   s.sigKey,
				CredentialType: CredentialTypeBasic,
				Identity:       "did:plc:alice",
				NotBefore:      testNow.Add(-time.Hour),
				NotAfter:       testNow.Add(30 * 24 * time.Hour),
				LastResort:     true,
				Extensions:     s.packageExts,
				Ref:            ref.Sum(nil),
				Raw:            bare,
			}
			if diff := cmp.Diff(want, k, cmpopts.IgnoreUnexported(KeyPackage{})); diff != "" {
				t.Error(diff)
			}
			if err := k.Check(testNow); err != nil {
				t.Error(err)
			}
			if err := k.VerifySignatures(); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(k, mustParse(t, bare),
				cmp.AllowUnexported(KeyPackage{}, leafNode{}, capabilities{})); diff != "" {
				t.Errorf("bare and framed differ: %s", diff)
			}
			for _, data := range [][]byte{bare, framed(5, bare)} {
				if err := checkExact(codecs["KeyPackage"].parse, data); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestKeyPackageFraming parses a framed KeyPackage and a bare one of suite 5. Both begin with the
// same four bytes.
func TestKeyPackageFraming(t *testing.T) {
	t.Parallel()
	bare := newSpec(t, SuiteP521AES256).build(t)
	for name, data := range map[string][]byte{"bare": bare, "framed": framed(5, bare)} {
		k, err := ParseKeyPackage(data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if k.CipherSuite != SuiteP521AES256 || !bytes.Equal(k.Raw, bare) || len(k.Ref) != 64 {
			t.Errorf("%s: suite %v, ref %v", name, k.CipherSuite, k.Ref)
		}
		if err := k.Check(testNow); err != nil {
			t.Errorf("%s: Check: %v", name, err)
		}
	}
	good := newSpec(t, SuiteX25519AES128).build(t)
	for name, data := range map[string][]byte{
		"framed twice":      framed(5, framed(5, good)),
		"other wire format": framed(4, good),
		"empty":             nil,
	} {
		if _, err := ParseKeyPackage(data); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestKeyPackageCheck(t *testing.T) {
	t.Parallel()
	day := uint64(86400)
	now := uint64(testNow.Unix())
	for name, c := range map[string]struct {
		suite  CipherSuite // 1 if unset
		change func(*keyPackageSpec)
		want   error // nil: accepted
		field  string
	}{
		"as is": {change: func(s *keyPackageSpec) {}},
		"unknown suite": {change: func(s *keyPackageSpec) { s.suite = 0xf001 }, want: ErrUnsupported,
			field: "cipher_suite"},
		"update leaf": {change: func(s *keyPackageSpec) { s.source = 2 }, want: ErrMalformed,
			field: "LeafNode.leaf_node_source"},
		"commit leaf": {change: func(s *keyPackageSpec) { s.source = 3 }, want: ErrMalformed,
			field: "LeafNode.leaf_node_source"},
		"same keys": {change: func(s *keyPackageSpec) { s.initKey = s.encKey }, want: ErrMalformed, field: "init_key"},
		"short init_key": {change: func(s *keyPackageSpec) { s.initKey = s.initKey[1:] }, want: ErrMalformed,
			field: "init_key"},
		"empty init_key": {change: func(s *keyPackageSpec) { s.initKey = nil }, want: ErrMalformed, field: "init_key"},
		"long encryption": {change: func(s *keyPackageSpec) { s.encKey = make([]byte, 65) }, want: ErrMalformed,
			field: "LeafNode.encryption_key"},
		"short signature": {change: func(s *keyPackageSpec) { s.sigKey = s.sigKey[1:] }, want: ErrMalformed,
			field: "LeafNode.signature_key"},
		"P-256 off curve": {suite: 2, change: func(s *keyPackageSpec) { s.initKey[9] ^= 1 }, want: ErrMalformed,
			field: "init_key"},
		"P-256 compressed": {suite: 2, change: func(s *keyPackageSpec) { s.sigKey = append([]byte{2}, s.sigKey[1:33]...) },
			want: ErrMalformed, field: "LeafNode.signature_key"},
		"P-256 bad signer": {suite: 2, change: func(s *keyPackageSpec) { s.sigKey[40] ^= 1 }, want: ErrMalformed,
			field: "LeafNode.signature_key"},

		"expired": {change: func(s *keyPackageSpec) { s.notAfter = now }, want: ErrExpired,
			field: "Lifetime.not_after"},
		"last second": {change: func(s *keyPackageSpec) { s.notAfter = now + 1 }},
		"future": {change: func(s *keyPackageSpec) { s.notBefore = now + 301 }, want: ErrExpired,
			field: "Lifetime.not_before"},
		"skewed clock":     {change: func(s *keyPackageSpec) { s.notBefore = now + 300 }},
		"longest lifetime": {change: func(s *keyPackageSpec) { s.notBefore, s.notAfter = now-3600, now+84*day }},
		"too long": {change: func(s *keyPackageSpec) { s.notBefore, s.notAfter = now-3600, now+84*day+1 },
			want: ErrLifetimeTooLong, field: "Lifetime"},
		"no end": {change: func(s *keyPackageSpec) { s.notBefore, s.notAfter = 0, 1<<64-1 },
			want: ErrLifetimeTooLong, field: "Lifetime"},
		"backwards": {change: func(s *keyPackageSpec) { s.notBefore, s.notAfter = now, now-1 }, want: ErrMalformed,
			field: "Lifetime"},
		"far away": {change: func(s *keyPackageSpec) { s.notBefore, s.notAfter = 1<<64-2, 1<<64-1 }, want: ErrExpired,
			field: "Lifetime.not_before"},

		"version unlisted": {change: func(s *keyPackageSpec) { s.versions = []uint16{2} }, want: ErrMalformed,
			field: "Capabilities.versions"},
		"suite unlisted": {change: func(s *keyPackageSpec) { s.suites = []uint16{2, 3} }, want: ErrMalformed,
			field: "Capabilities.cipher_suites"},
		"credential unlisted": {change: func(s *keyPackageSpec) { s.credentials = nil }, want: ErrMalformed,
			field: "Capabilities.credentials"},
		"extension unlisted": {change: func(s *keyPackageSpec) { s.leafExts = ext(0x5a5a) }, want: ErrMalformed,
			field: "Capabilities.extensions"},
		"default extension": {change: func(s *keyPackageSpec) {
			s.leafExts, s.capExts = ext(ExtensionApplicationID, 1),
				nil
		}},
		"last resort": {change: func(s *keyPackageSpec) { s.packageExts = ext(ExtensionLastResort) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpec(t, max(c.suite, 1))
			c.change(s)
			k := mustParse(t, s.build(t))
			if c.field != "LeafNode.signature_key" && c.want == nil {
				if err := k.VerifySignatures(); err != nil {
					t.Error(err)
				}
			}
			wantError(t, k.Check(testNow), c.want, c.field)
		})
	}
}

// wantError checks an error's kind and field. A kind of nil means no error.
func wantError(t *testing.T, err, kind error, field string) {
	t.Helper()
	if kind == nil {
		if err != nil {
			t.Errorf("got %v, want no error", err)
		}
		return
	}
	var p *ParseError
	if !errors.As(err, &p) || !errors.Is(err, kind) || p.Field != field {
		t.Errorf("got %v, want %v at %s", err, kind, field)
	}
}

func TestParseKeyPackageRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*keyPackageSpec)
		want   error
		field  string
	}{
		"version 2": {func(s *keyPackageSpec) { s.version = 2 }, ErrUnsupported, "KeyPackage.version"},
		"GREASE credential": {func(s *keyPackageSpec) { s.credential = cat(u16(0x0a0a), vec()) }, ErrUnsupported,
			"Credential.credential_type"},
		"unknown source": {func(s *keyPackageSpec) { s.source = 4 }, ErrMalformed, "LeafNode.leaf_node_source"},
		"extension twice": {func(s *keyPackageSpec) { s.leafExts = cat(ext(7), ext(8), ext(7)) }, ErrMalformed,
			"LeafNode.extensions"},
		"extension cut": {func(s *keyPackageSpec) { s.packageExts = cat(ext(7), u16(8)) }, ErrMalformed,
			"KeyPackage.extension_data"},
		"more than a limit": {func(s *keyPackageSpec) { s.packageExts = ext(7, make([]byte, MaxKeyPackageSize)...) },
			ErrTooLarge, ""},
		"truncated cert": {func(s *keyPackageSpec) { s.credential = cat(u16(2), vec(u8(3))) }, ErrMalformed,
			"Credential.cert_data"},
		"twelve, then twice": {func(s *keyPackageSpec) { s.packageExts = cat(manyExts(12), ext(0x1003)) }, ErrMalformed,
			"KeyPackage.extensions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpec(t, SuiteX25519AES128)
			c.change(s)
			_, err := ParseKeyPackage(s.build(t))
			wantError(t, err, c.want, c.field)
		})
	}
}

// manyExts returns n empty extensions of different types from 0x1000 up.
func manyExts(n int) (list []byte) {
	for i := range n {
		list = append(list, ext(ExtensionType(0x1000+i))...)
	}
	return list
}

// TestLongExtensionLists has two lists that are too long for the fast check. They share types with
// each other, which is allowed.
func TestLongExtensionLists(t *testing.T) {
	t.Parallel()
	s := newSpec(t, SuiteX25519AES128)
	s.leafExts, s.packageExts = manyExts(20), manyExts(30)
	k := mustParse(t, s.build(t))
	if !k.Extensions.Has(0x101d) || k.Extensions.Has(0x101e) {
		t.Error("wrong extensions")
	}
}

func TestX509Credential(t *testing.T) {
	t.Parallel()
	s := newSpec(t, SuiteX25519AES128)
	s.credential = cat(u16(2), vec(vec([]byte("leaf")), vec([]byte("issuer"))))
	s.credentials = []uint16{2}
	k := mustParse(t, s.build(t))
	if k.CredentialType != CredentialTypeX509 || k.Identity != "" || k.BelongsTo("") {
		t.Errorf("credential %d %q", k.CredentialType, k.Identity)
	}
	if err := k.Check(testNow); err != nil {
		t.Error(err)
	}
}

func TestBelongsTo(t *testing.T) {
	t.Parallel()
	for identity, want := range map[string]bool{
		"did:plc:alice":        true,
		"did:plc:alice#phone":  true,
		"did:plc:alice#":       true,
		"did:plc:alicetoo":     false,
		"did:plc:alic":         false,
		"did:plc:ALICE":        false,
		"":                     false,
		"x did:plc:alice":      false,
		"did:plc:alice/device": false,
	} {
		s := newSpec(t, SuiteX25519AES128)
		s.credential = basic(identity)
		if got := mustParse(t, s.build(t)).BelongsTo("did:plc:alice"); got != want {
			t.Errorf("%q: %v, want %v", identity, got, want)
		}
	}
}

func TestDeviceID(t *testing.T) {
	t.Parallel()
	s := newSpec(t, SuiteX25519AES128)
	first := mustParse(t, s.build(t))
	s.initKey = newHPKEKey(t, SuiteX25519AES128)
	second := mustParse(t, s.build(t))
	if first.DeviceID() != second.DeviceID() || slices.Equal(first.Ref, second.Ref) {
		t.Error("one key must be one device with many KeyPackages")
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(s.sigKey)); first.DeviceID() != want {
		t.Errorf("got %s, want %s", first.DeviceID(), want)
	}
}

// TestSignaturesCoverEveryBit flips a bit of each byte of a KeyPackage, in the slow suites of one
// byte in seven. Each flip gives an error.
func TestSignaturesCoverEveryBit(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	for _, suite := range supportedSuites {
		t.Run(suite.String(), func(t *testing.T) {
			t.Parallel()
			data, step := newSpec(t, suite).build(t), 1
			if suite > SuiteX25519ChaCha20 { // signatures cost many times more
				step = 7
			}
			for i := 0; i < len(data); i += step {
				// One bit of each byte: all eight cost seconds under -race.
				bit := byte(1) << (i % 8)
				data[i] ^= bit
				k, err := ParseKeyPackage(data)
				if err == nil {
					err = k.VerifySignatures()
				}
				if err == nil {
					t.Errorf("byte %d of %d: flipping a bit went unnoticed", i, len(data))
				}
				data[i] ^= bit
			}
		})
	}
}

// TestSignaturesRefused exchanges the two signatures, and replaces the signing key. The leaf's key
// must have made both.
func TestSignaturesRefused(t *testing.T) {
	t.Parallel()
	s, other := newSpec(t, SuiteX25519AES128), newSpec(t, SuiteX25519AES128)
	leaf := s.leaf(t)
	tbs := cat(u16(s.version, s.suite), vec(s.initKey), leaf, vec(s.packageExts))
	swapped := newSpec(t, SuiteX25519AES128)
	swapped.signer = other.signer
	for name, c := range map[string]struct {
		data  []byte
		field string
	}{
		"label of the leaf": {cat(tbs, vec(s.sign(t, "LeafNodeTBS", tbs))), "signature"},
		"another's key":     {cat(tbs, vec(other.sign(t, "KeyPackageTBS", tbs))), "signature"},
		"no signature":      {cat(tbs, vec()), "signature"},
		"leaf of another":   {swapped.build(t), "LeafNode.signature"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantError(t, mustParse(t, c.data).VerifySignatures(), ErrBadSignature, c.field)
		})
	}
}
