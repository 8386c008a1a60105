package mlsclient

import (
	"bytes"
	"testing"
)

// A forged object parses and has exactly one fault. Honest members refuse it if they can see the
// fault.
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
		for name, f := range map[string]Forgery{
			"sender": {Sender: &leaf, Signed: true}, "epoch": {Epoch: &next, Signed: true}, "unsigned": {Epoch: &next},
		} {
			forged, err := ForgeCommit(mallory, staged.Commit, f)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Equal(forged, staged.Commit) {
				t.Errorf("%s: nothing was changed", name)
			}
			if epoch, err := HeaderEpoch(forged); err != nil || f.Epoch != nil && epoch != next {
				t.Errorf("%s: the header says %d, %v", name, epoch, err)
			}
			if _, err := bob.Process(forged); err == nil {
				t.Errorf("%s: an honest member takes it", name)
			}
		}
		masked, err := StageAs(mallory, "did:plc:bob")
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
	if _, err := ForgeInfo(mallory, InfoForgery{}); err == nil {
		t.Error("a GroupInfo of nothing staged was made")
	}
	staged, err := mallory.StageAdd(mustPackage(t, mustDevice(t, "did:plc:dave", SuiteX25519)).Message)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := ForgeInfo(mallory, InfoForgery{NoTree: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadInfo(bare); err == nil {
		t.Error("a GroupInfo without a tree has one")
	}
	leaf := groups[1].Own()
	signed, err := ForgeInfo(mallory, InfoForgery{Signer: &leaf})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mustDevice(t, "did:plc:eve", SuiteX25519).JoinExternal(signed, NoLeaf); err == nil {
		t.Error("a GroupInfo in another's name lets somebody in")
	}
	ref, other := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 32)
	welcome, err := ForgeWelcome(staged.Welcome, ref, other)
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
		again, err := ReplayInitKey(d, used.Message)
		if err != nil {
			t.Fatal(err)
		}
		broken, err := BreakLeaf(d)
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
