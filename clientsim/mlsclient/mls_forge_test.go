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
