package mlsclient

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"
)

func TestHeaderEpoch(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 63, 64, 20_000} { // lengths of one, two and four bytes
		message := FakeMessage(make([]byte, size), 7, 10)
		if epoch, err := HeaderEpoch(message); err != nil || epoch != 7 {
			t.Errorf("group_id of %d bytes: epoch %d, %v", size, epoch, err)
		}
	}
	for name, message := range map[string][]byte{
		"empty":               {},
		"a Welcome":           {0, 1, 0, 3, 0},
		"no group_id":         {0, 1, 0, 1},
		"half a length":       {0, 1, 0, 1, 0x40},
		"a length of 8 bytes": append([]byte{0, 1, 0, 1, 0xc0}, make([]byte, 30)...),
		"half a group_id":     {0, 1, 0, 1, 2, 9},
		"half an epoch":       {0, 1, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7},
	} {
		if epoch, err := HeaderEpoch(message); err == nil {
			t.Errorf("%s: epoch %d", name, epoch)
		}
	}
}

// The hash is that of RFC 9420 §5.2: it covers all but the version and the membership_tag.
func TestRefersTo(t *testing.T) {
	t.Parallel()
	content := []byte{0, 1, 'c'}
	tag := append([]byte{sha256.Size}, make([]byte, sha256.Size)...)
	proposal := slices.Concat([]byte{0, 1}, content, tag)
	ref := sha256.Sum256(slices.Concat([]byte{26}, []byte("MLS 1.0 Proposal Reference"), []byte{byte(len(content))},
		content))
	commit := slices.Concat([]byte{0, 1, 0, 1, 'x', 2, sha256.Size}, ref[:])
	if refers, err := RefersTo(commit, proposal); err != nil || !refers {
		t.Errorf("refers %t, %v", refers, err)
	}
	commit[len(commit)-1] ^= 1
	if refers, err := RefersTo(commit, proposal); err != nil || refers {
		t.Errorf("another reference: refers %t, %v", refers, err)
	}
	if _, err := RefersTo(FakeCommit(nil, 1, 100), proposal); err == nil {
		t.Error("a hidden commit was read")
	}
	if _, err := RefersTo(commit, proposal[:20]); err == nil {
		t.Error("a proposal that is cut off was read")
	}
}

func TestCheckGrease(t *testing.T) {
	t.Parallel()
	alice := mustDevice(t, "did:plc:alice", SuiteX25519)
	if err := CheckGrease(mustPackage(t, alice).Message); err == nil || !strings.Contains(err.Error(), "no GREASE value") {
		t.Errorf("a KeyPackage of mls-go: %v", err)
	}
	if err := CheckGreaseExtensions(mustPackage(t, alice).Message); err == nil {
		t.Error("a KeyPackage without extensions has GREASE extensions")
	}
	var grease []uint16
	for v := range 1 << 16 {
		if isGrease(uint16(v)) {
			grease = append(grease, uint16(v))
		}
	}
	if len(grease) != 15 || grease[0] != 0x0a0a || grease[14] != 0xeaea {
		t.Errorf("GREASE values are %04x", grease)
	}
}
