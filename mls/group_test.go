package mls

import (
	"bytes"
	"testing"
)

// TestVectorsGroups opens every GroupInfo that the vectors hold and verifies it
// with its tree.
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

// TestVectorsGroupInfoSignature: these come without a tree, but with the key.
func TestVectorsGroupInfoSignature(t *testing.T) {
	t.Parallel()
	for i, v := range loadVectors[joinVector](t, "welcome.json") {
		if !v.CipherSuite.Supported() {
			continue
		}
		info := must(ParseGroupInfo(v.openGroupInfo(t)))(t)
		verify := v.CipherSuite.verifier(v.SignerPub)
		if verify == nil || !verify(signContent("GroupInfoTBS", info.tbs()), info.Signature) {
			t.Errorf("%d: signature does not verify", i)
		}
	}
}

// TestVectorsGroupInfoMutations flips every bit of a GroupInfo with its tree.
func TestVectorsGroupInfoMutations(t *testing.T) {
	t.Parallel()
	done := map[CipherSuite]bool{}
	for _, v := range loadVectors[joinVector](t, "passive-client-welcome.json") {
		if v.CipherSuite > SuiteP256AES128 || v.RatchetTree != nil || done[v.CipherSuite] {
			continue
		}
		done[v.CipherSuite] = true
		data := v.openGroupInfo(t)
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
		for bit := range 8 * len(data) {
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
