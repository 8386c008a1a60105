package mls

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseGroupInfo(t *testing.T) {
	t.Parallel()
	s := newGroupInfo()
	s.context = cat(ext(ExtensionRequiredCapabilities, 0, 0, 0), ext(ExtensionExternalSenders, 0))
	s.own = cat(ext(0x6a6a, 1), ext(ExtensionRatchetTree, testTree(t)...),
		ext(ExtensionExternalPub, vec(make([]byte, 32))...))
	bare := s.build()
	want := GroupInfo{
		Version:                 VersionMLS10,
		CipherSuite:             SuiteX25519AES128,
		GroupID:                 []byte(testGroup),
		Epoch:                   5,
		TreeHash:                []byte("tree hash"),
		ConfirmedTranscriptHash: []byte("transcript"),
		ContextExtensions:       s.context,
		Extensions:              s.own,
		ConfirmationTag:         []byte("confirmation"),
		Signer:                  9,
		Signature:               []byte("signature"),
		HasRatchetTree:          true,
		HasExternalPub:          true,
		Raw:                     bare,
	}
	for name, data := range map[string][]byte{"bare": bare, "framed": framed(4, bare)} {
		got, err := ParseGroupInfo(data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if err := checkExact(codecs["GroupInfo"].parse, data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkExact(checkRatchetTree, testTree(t)); err != nil {
		t.Errorf("tree: %v", err)
	}
}

// TestGroupInfoFraming parses a framed GroupInfo and a bare one of suite 4. Both begin with the
// same four bytes.
func TestGroupInfoFraming(t *testing.T) {
	t.Parallel()
	s := newGroupInfo()
	s.suite = uint16(SuiteX448AES256)
	for name, data := range map[string][]byte{"bare": s.build(), "framed": framed(4, s.build())} {
		g, err := ParseGroupInfo(data)
		if err != nil || g.CipherSuite != SuiteX448AES256 || string(g.GroupID) != testGroup {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
}

func TestParseGroupInfoRefuses(t *testing.T) {
	t.Parallel()
	leaf := func(source uint8) []byte { return cat(u8(1), u8(1), leafOf(t, source)) }
	parent := cat(u8(1), u8(2), vec(), vec(), vec())
	tree := func(nodes ...[]byte) []byte { return ext(ExtensionRatchetTree, vec(nodes...)...) }
	for name, c := range map[string]struct {
		change func(*groupInfoSpec)
		want   error
		field  string
	}{
		"plain":          {func(*groupInfoSpec) {}, nil, ""},
		"epoch too high": {func(s *groupInfoSpec) { s.epoch = 1 << 53 }, ErrUnsupported, "GroupContext.epoch"},
		"group_id too long": {func(s *groupInfoSpec) { s.group = make([]byte, 65) }, ErrUnsupported,
			"GroupContext.group_id"},
		"group_id empty": {func(s *groupInfoSpec) { s.group = nil }, ErrUnsupported, "GroupContext.group_id"},
		"too large":      {func(s *groupInfoSpec) { s.own = ext(9, make([]byte, MaxGroupInfoSize)...) }, ErrTooLarge, ""},
		"context twice": {func(s *groupInfoSpec) { s.context = cat(ext(9), ext(9)) }, ErrMalformed,
			"GroupContext.extensions"},
		"own twice":        {func(s *groupInfoSpec) { s.own = cat(ext(9), ext(9)) }, ErrMalformed, "GroupInfo.extensions"},
		"both":             {func(s *groupInfoSpec) { s.own, s.context = ext(9), ext(9) }, nil, ""},
		"one leaf":         {func(s *groupInfoSpec) { s.own = tree(leaf(1)) }, nil, ""},
		"no tree":          {func(s *groupInfoSpec) { s.own = tree() }, ErrMalformed, "ratchet_tree.nodes"},
		"blank at the end": {func(s *groupInfoSpec) { s.own = tree(leaf(1), u8(0)) }, ErrMalformed, "ratchet_tree.nodes"},
		"parent first": {func(s *groupInfoSpec) { s.own = tree(parent, leaf(1)) }, ErrMalformed,
			"ratchet_tree.node_type"},
		"leaf second": {func(s *groupInfoSpec) { s.own = tree(leaf(1), leaf(1)) }, ErrMalformed,
			"ratchet_tree.node_type"},
		"odd unmerged": {func(s *groupInfoSpec) { s.own = tree(u8(0), cat(u8(1), u8(2), vec(), vec(), vec(u8(1)))) },
			ErrMalformed, "ParentNode.unmerged_leaves"},
		"after the tree": {func(s *groupInfoSpec) { s.own = ext(ExtensionRatchetTree, cat(vec(leaf(1)), u8(0))...) },
			ErrMalformed, "GroupInfo"},
		"external_pub bare": {func(s *groupInfoSpec) { s.own = ext(ExtensionExternalPub, make([]byte, 32)...) },
			ErrMalformed, "ExternalPub.external_pub"},
		"external_pub long": {func(s *groupInfoSpec) {
			s.own = ext(ExtensionExternalPub,
				cat(vec(make([]byte, 32)), u8(0))...)
		}, ErrMalformed, "ExternalPub.external_pub"},
		"external_pub": {func(s *groupInfoSpec) { s.own = ext(ExtensionExternalPub, vec(make([]byte, 32))...) }, nil,
			""},
		"external_pub short": {func(s *groupInfoSpec) { s.own = ext(ExtensionExternalPub, 5, 1) }, ErrMalformed,
			"ExternalPub.external_pub"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newGroupInfo()
			c.change(&s)
			_, err := ParseGroupInfo(framed(4, s.build()))
			wantError(t, err, c.want, c.field)
		})
	}
}
