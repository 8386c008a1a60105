package mls

import (
	"bytes"
	"cmp"
	"crypto/mlkem"
	"errors"
	"strings"
	"testing"
)

// TestLimits: the suites of RFC 9420 have the limits that they always had; a post-quantum suite has
// more, but never more than the limits of any suite.
func TestLimits(t *testing.T) {
	t.Parallel()
	rfc := Limits{KeyPackage: 4 << 10, Commit: 1 << 20, Welcome: 1 << 20, GroupInfo: 1 << 20}
	for _, suite := range append(supportedSuites, 0x0a0a) {
		l := suite.Limits()
		if suite <= SuiteP384AES256 || suite == 0x0a0a {
			if l != rfc {
				t.Errorf("%s: %+v", suite, l)
			}
			continue
		}
		if l.KeyPackage <= rfc.KeyPackage || l.KeyPackage > MaxKeyPackageSize || l.Commit > MaxCommitSize ||
			l.Welcome > MaxWelcomeSize || l.GroupInfo <= rfc.GroupInfo || l.GroupInfo > MaxGroupInfoSize {
			t.Errorf("%s: %+v", suite, l)
		}
	}
}

// TestSizesBySuite: a KeyPackage of each suite, and a group of 1,000 devices in its most expensive
// state, are within the suite's limits. With ML-DSA signatures fewer devices are. The sizes are in
// docs/clients/MLS-LIBRARIES.md: go test ./mls -run TestSizesBySuite -v
func TestSizesBySuite(t *testing.T) {
	t.Parallel()
	for _, suite := range supportedSuites {
		t.Run(suite.String(), func(t *testing.T) {
			t.Parallel()
			l, devices := suite.Limits(), 1000
			if strings.Contains(suite.String(), "MLDSA") {
				devices = 250
			}
			if testing.Short() && devices == 1000 && suite != SuiteXWing {
				devices = 50
			}
			keyPackage := len(newSpec(t, suite).build(t))
			g := newGroupSpec(t, suite, devices)
			add := addOf(t, newSpec(t, suite))
			commit := len((&commitSpec{proposals: [][]byte{add}}).build(t, g)) // no parent is known: a secret for each leaf
			for i := range g.group.Tree.parents {
				g.group.Tree.parents[i] = &parentNode{encryptionKey: newHPKEKey(t, suite),
					parentHash: make([]byte, suite.hashSize())}
			}
			info := len(g.groupInfo(t, 0))
			perRecipient := 2 + suite.hashSize() + 4 + suite.params().kem.outputSize + 4 + 3*suite.hashSize() + 16
			t.Logf("| `%s` | %d | %d | %d | %d | %d |", suite, keyPackage, perRecipient, devices, commit, info)
			if keyPackage > l.KeyPackage || commit > l.Commit || devices*perRecipient > l.Welcome || info > l.GroupInfo {
				t.Errorf("KeyPackage %d, commit %d, Welcome %d, GroupInfo %d bytes; limits %+v", keyPackage, commit,
					devices*perRecipient, info, l)
			}
		})
	}
}

// TestLimitsFollowTheSuite: an object that the limits of any suite allow is refused if its own
// suite's do not.
func TestLimitsFollowTheSuite(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"KeyPackage": func() error {
			s := newSpec(t, SuiteX25519AES128)
			s.packageExts = ext(7, make([]byte, 4<<10)...)
			_, err := ParseKeyPackage(s.build(t))
			return err
		}(),
		"GroupInfo": func() error {
			s := newGroupInfo()
			s.own = ext(9, make([]byte, 1<<20)...)
			_, err := ParseGroupInfo(s.build())
			return err
		}(),
		"Welcome": func() error {
			_, err := ParseWelcome(framed(3, cat(u16(1), vec(vec(testRef(1)), vec(), vec()), vec(make([]byte, 1<<20)))))
			return err
		}(),
		"LeafNode": func() error {
			s := newSpec(t, SuiteX25519AES128)
			s.source, s.leafExts = 2, ext(0x2a2a, make([]byte, 4<<10)...)
			r := newReader("LeafNode", s.leaf(t))
			leaf := r.leafNode()
			return cmp.Or[error](r.finish(), SuiteX25519AES128.verifyLeaf(&leaf, []byte(testGroup), 0))
		}(),
	} {
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s of suite 1: %v", name, err)
		}
	}
	s := newSpec(t, SuiteXWing)
	s.packageExts = ext(7, make([]byte, 3<<9)...)
	if data := s.build(t); len(data) <= 4<<10 {
		t.Errorf("a KeyPackage of %d bytes", len(data))
	} else if _, err := ParseKeyPackage(data); err != nil {
		t.Errorf("a KeyPackage of X-Wing: %v", err)
	}
	info := groupInfoSpec{suite: uint16(SuiteXWing), group: []byte(testGroup), own: ext(9, make([]byte, 2<<20)...)}
	if _, err := ParseGroupInfo(info.build()); err != nil {
		t.Errorf("a GroupInfo of X-Wing: %v", err)
	}
}

// TestMLKEMKeys: a key whose coefficients are not reduced is no key (FIPS 203 §7.2). crypto/mlkem
// agrees about keys with any one coefficient around q.
func TestMLKEMKeys(t *testing.T) {
	t.Parallel()
	for _, suite := range []CipherSuite{SuiteXWing, 0x0050, 0x0906} {
		key := newHPKEKey(t, suite)
		if !suite.validHPKEKey(key) {
			t.Errorf("%s: a key is refused", suite)
		}
		if suite.validHPKEKey(key[1:]) {
			t.Errorf("%s: a key of another size is accepted", suite)
		}
		if out := newKEMOutput(t, suite); !suite.validKEMOutput(out) || suite.validKEMOutput(out[1:]) {
			t.Errorf("%s: outputs", suite)
		}
	}
	for name, c := range map[string]struct {
		suite CipherSuite
		parse func([]byte) error
	}{
		"ML-KEM-768":  {0x0050, func(b []byte) error { _, err := mlkem.NewEncapsulationKey768(b); return err }},
		"ML-KEM-1024": {0x0906, func(b []byte) error { _, err := mlkem.NewEncapsulationKey1024(b); return err }},
	} {
		key := newHPKEKey(t, c.suite)
		for at := 0; at+3 <= len(key)-32; at += 3 {
			for _, coefficients := range [][2]uint32{{3328, 0}, {3329, 0}, {0, 3328}, {0, 3329}, {4095, 4095}} {
				changed, v := bytes.Clone(key), coefficients[0]|coefficients[1]<<12
				changed[at], changed[at+1], changed[at+2] = byte(v), byte(v>>8), byte(v>>16)
				if got, want := c.suite.validHPKEKey(changed), c.parse(changed) == nil; got != want {
					t.Fatalf("%s, byte %d, coefficients %v: %v, and crypto/mlkem says %v", name, at, coefficients, got, want)
				}
			}
		}
	}
}
