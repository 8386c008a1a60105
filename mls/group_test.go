package mls

import (
	"bytes"
	"testing"
)

// TestVectorsGroups decrypts every GroupInfo of the vectors and verifies it with its tree.
func TestVectorsGroups(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"passive-client-welcome.json", "passive-client-handling-commit.json"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			verified, other := 0, 0
			for i, v := range loadVectors[joinVector](t, name) {
				if !v.CipherSuite.Supported() {
					other++
					continue
				}
				verified++
				g, info := v.group(t)
				if !bytes.HasPrefix(info.Raw, g.Context()) {
					t.Errorf("%d: GroupContext differs", i)
				}
				if err := g.Matches(info); err != nil {
					t.Errorf("%d: %v", i, err)
				}
				k := mustParse(t, v.KeyPackage)
				found := false
				for m := range g.Tree.Members() {
					found = found || bytes.Equal(m.EncryptionKey, k.EncryptionKey)
				}
				if !found {
					t.Errorf("%d: the new member is not in the tree", i)
				}
			}
			t.Logf("%d verified, %d of suites that are not supported here", verified, other)
		})
	}
}

// TestVectorsGroupInfoSignature verifies GroupInfos without a tree. The vectors have the signer's
// key.
func TestVectorsGroupInfoSignature(t *testing.T) {
	t.Parallel()
	for i, v := range loadVectors[joinVector](t, "welcome.json") {
		if !v.CipherSuite.Supported() {
			continue
		}
		info := must(ParseGroupInfo(v.decryptGroupInfo(t)))(t)
		verify := v.CipherSuite.verifier(v.SignerPub)
		if verify == nil || !verify(signContent("GroupInfoTBS", info.tbs()), info.Signature) {
			t.Errorf("%d: signature does not verify", i)
		}
	}
}

// TestVectorsGroupInfoMutations flips bits in all parts of a GroupInfo with its tree.
func TestVectorsGroupInfoMutations(t *testing.T) {
	t.Parallel()
	done := map[CipherSuite]bool{}
	for _, v := range loadVectors[joinVector](t, "passive-client-welcome.json") {
		if v.CipherSuite > SuiteP256AES128 || v.RatchetTree != nil || done[v.CipherSuite] {
			continue
		}
		done[v.CipherSuite] = true
		data := v.decryptGroupInfo(t)
		check := func(data []byte) error {
			info, err := ParseGroupInfo(data)
			if err != nil {
				return err
			}
			tree, err := info.Tree()
			if err != nil {
				return err
			}
			_, err = info.Verify(tree)
			return err
		}
		if err := checkExact(check, data); err != nil {
			t.Error(err)
		}
		for bit := 0; bit < 8*len(data); bit += 3 { // every byte, and in turn every bit of it
			bad := bytes.Clone(data)
			bad[bit/8] ^= 1 << (bit % 8)
			if check(bad) == nil {
				t.Errorf("suite %d: accepted with bit %d of byte %d flipped", v.CipherSuite, bit%8, bit/8)
			}
		}
	}
	if len(done) != 2 && !t.Skipped() {
		t.Errorf("only %d GroupInfos tried", len(done))
	}
}

// TestVerifyGroupInfoRefuses verifies GroupInfos that have a valid signature but wrong content.
// Only the empty tag at epoch 0 passes: existing clients send it for a new group.
func TestVerifyGroupInfoRefuses(t *testing.T) {
	t.Parallel()
	required := ext(ExtensionRequiredCapabilities, cat(vec(), vec(), vec(u16(2)))...)
	for name, c := range map[string]struct {
		change func(*Group)
		want   error
		field  string
	}{
		"good":    {func(*Group) {}, nil, ""},
		"epoch 0": {func(g *Group) { g.Epoch, g.ConfirmedTranscriptHash = 0, nil }, nil, ""},
		"epoch 0, empty tag": {func(g *Group) { g.Epoch, g.ConfirmedTranscriptHash, g.ConfirmationTag = 0, nil, nil }, nil,
			""},
		"empty tag": {func(g *Group) { g.ConfirmationTag = nil }, ErrMalformed, "confirmation_tag"},
		"short tag": {func(g *Group) { g.Epoch, g.ConfirmationTag = 0, g.ConfirmationTag[1:] }, ErrMalformed,
			"confirmation_tag"},
		"empty transcript hash": {func(g *Group) { g.ConfirmedTranscriptHash = nil }, ErrMalformed,
			"GroupContext.confirmed_transcript_hash"},
		"required credential": {func(g *Group) { g.ContextExtensions = required }, ErrMalformed, "Capabilities"},
		"blank signer":        {func(g *Group) { g.Tree = g.Tree.without(1) }, ErrMalformed, "signer"},
		"tree with a bad leaf": {func(g *Group) {
			g.Tree = g.Tree.clone()
			bad := *g.Tree.leaves[2]
			bad.signature = make([]byte, 64)
			bad.raw = cat(bad.tbs, vec(bad.signature))
			g.Tree.leaves[2] = &bad
			g.Tree.rehash()
		}, ErrBadSignature, "LeafNode.signature"},
	} {
		g := newGroupSpec(t, SuiteX25519AES128, 3)
		c.change(g.group)
		info := must(ParseGroupInfo(g.groupInfo(t, 1)))(t)
		_, err := info.Verify(must(info.Tree())(t))
		if wantError(t, err, c.want, c.field); t.Failed() {
			t.Fatal(name)
		}
		other := newGroupSpec(t, SuiteX25519AES128, 3)
		_, err = info.Verify(other.group.Tree)
		if c.want == nil {
			wantError(t, err, ErrMalformed, "GroupContext.tree_hash")
			wantError(t, other.group.Matches(&info), ErrMalformed, "group_context")
		}
		info.Signature[3] ^= 1
		if _, err = info.Verify(g.group.Tree); err == nil {
			t.Errorf("%s: accepted with another signature", name)
		}
	}
}

// without returns the tree with a blank leaf in place of one.
func (t *Tree) without(leaf uint32) *Tree {
	t = t.clone()
	t.leaves[leaf] = nil
	t.rehash()
	return t
}
