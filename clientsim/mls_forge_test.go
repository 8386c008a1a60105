package clientsim

import (
	"bytes"
	"testing"
)

// What the forger makes parses, is wrong in the one thing that it is to be wrong
// in, and is refused by honest members where they can see it.
func TestForgedCommits(t *testing.T) {
	t.Parallel()
	for _, suite := range suites() {
		_, groups := three(t, suite)
		mallory, bob := groups[2], groups[1]
		staged, err := mallory.StageUpdate()
		if err != nil {
			t.Fatal(err)
		}
		leaf, next := bob.Own(), mallory.Epoch()+1
		for name, f := range map[string]forgery{
			"sender": {sender: &leaf, signed: true}, "epoch": {epoch: &next, signed: true}, "unsigned": {epoch: &next},
		} {
			forged, err := forgeCommit(mallory, staged.Commit, f)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(forged, staged.Commit) {
				t.Errorf("%s: nothing was changed", name)
			}
			if epoch, err := headerEpoch(forged); err != nil || f.epoch != nil && epoch != next {
				t.Errorf("%s: the header says %d, %v", name, epoch, err)
			}
			if _, err := bob.Process(forged); err == nil {
				t.Errorf("%s: an honest member takes it", name)
			}
		}
		masked, err := stageAs(mallory, "did:plc:bob")
		if err != nil {
			t.Fatal(err)
		}
		info, err := ReadInfo(masked.GroupInfo)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Leaves[mallory.Own()].Identity; got != "did:plc:bob" {
			t.Errorf("the masked leaf is %s's", got)
		}
		mallory.Discard()
		sameEpoch(t, groups...)
	}
}

func TestForgedInfosAndWelcomes(t *testing.T) {
	t.Parallel()
	_, groups := three(t, SuiteX25519)
	mallory := groups[2]
	if _, err := forgeInfo(mallory, infoForgery{}); err == nil {
		t.Error("a GroupInfo of nothing staged was made")
	}
	staged, err := mallory.StageAdd(mustPackage(t, mustDevice(t, "did:plc:dave", SuiteX25519)).Message)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := forgeInfo(mallory, infoForgery{noTree: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadInfo(bare); err == nil {
		t.Error("a GroupInfo without a tree has one")
	}
	leaf := groups[1].Own()
	signed, err := forgeInfo(mallory, infoForgery{signer: &leaf})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mustDevice(t, "did:plc:eve", SuiteX25519).JoinExternal(signed, NoLeaf); err == nil {
		t.Error("a GroupInfo in another's name lets somebody in")
	}
	ref, other := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 32)
	welcome, err := forgeWelcome(staged.Welcome, ref, other)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(welcome, ref) || !bytes.Contains(welcome, other) {
		t.Error("the refs are not in the Welcome")
	}
}

func TestForgedPackages(t *testing.T) {
	t.Parallel()
	for _, suite := range suites() {
		d := mustDevice(t, "did:plc:mallory", suite)
		used := mustPackage(t, d)
		again, err := replayInitKey(d, used.Message)
		if err != nil {
			t.Fatal(err)
		}
		broken, err := breakLeaf(d)
		if err != nil {
			t.Fatal(err)
		}
		one, err := readPackage(used.Message)
		if err != nil {
			t.Fatal(err)
		}
		for _, kp := range []KeyPackage{again, broken} {
			two, err := readPackage(kp.Message)
			if err != nil {
				t.Fatal(err)
			}
			if err := two.Verify(two.CipherSuite); err != nil {
				t.Error(err)
			}
			if same := bytes.Equal(one.InitKey, two.InitKey); same != (kp.Ref == again.Ref) {
				t.Errorf("the same init_key: %t", same)
			}
		}
	}
}
