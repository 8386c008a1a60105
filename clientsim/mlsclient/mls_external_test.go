package mlsclient

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mustInfo returns the GroupInfo of a group's present epoch.
func mustInfo(t *testing.T, g Group) []byte {
	t.Helper()
	info, err := g.GroupInfo()
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// enter makes a device join by external commit, makes the others process the commit, and returns
// the device's group.
func enter(t *testing.T, d Device, info []byte, prior int, others ...Group) Group {
	t.Helper()
	staged, err := d.JoinExternal(info, prior)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range others {
		if got, err := g.Process(staged.Commit); err != nil || !got.Commit {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	d = restart(t, d) // a staged external commit survives
	g, err := d.ConfirmJoin(others[0].ID())
	if err != nil {
		t.Fatal(err)
	}
	if g.Epoch() != staged.Epoch {
		t.Errorf("entered epoch %d, staged %d", g.Epoch(), staged.Epoch)
	}
	return g
}

// ownLeaf finds the leaf of a device in a GroupInfo by its signature key.
func ownLeaf(t *testing.T, info []byte, d Device) int {
	t.Helper()
	read, err := ReadInfo(info)
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range read.Leaves {
		if bytes.Equal(leaf.SignatureKey, d.SignatureKey()) {
			return int(leaf.Index)
		}
	}
	return NoLeaf
}

func mustReborn(t *testing.T, d Device, keepKey bool) Device {
	t.Helper()
	reborn, err := d.Reborn(keepKey)
	if err != nil {
		t.Fatal(err)
	}
	return reborn
}

// three makes a group of alice, bob's phone and carol.
func three(t *testing.T, suite Suite) (devices []Device, groups []Group) {
	t.Helper()
	for _, id := range []string{"did:plc:alice", "did:plc:bob", "did:plc:carol"} {
		devices = append(devices, mustDevice(t, id, suite))
	}
	return devices, found(t, "external", devices[0], devices[1:]...)
}

// A new device joins beside the old device. A device that lost its state removes its old leaf, once
// with the same signature key and once with another. The joined device commits and makes GroupInfos
// like the other members.
func TestJoinExternal(t *testing.T) {
	t.Parallel()
	for _, suite := range suites() {
		t.Run(suite.Name(), func(t *testing.T) {
			t.Parallel()
			devices, groups := three(t, suite)
			a, b, c := groups[0], groups[1], groups[2]
			tablet := mustDevice(t, "did:plc:bob", suite)
			second := enter(t, tablet, mustInfo(t, a), NoLeaf, a, b, c)
			sameEpoch(t, a, b, c, second)
			tell(t, second, "from the tablet", a, b, c)

			info := mustInfo(t, second)
			prior := ownLeaf(t, info, devices[1])
			if prior == NoLeaf {
				t.Fatal("bob's phone is not in the GroupInfo")
			}
			b = enter(t, mustReborn(t, devices[1], true), info, prior, a, c, second)
			sameEpoch(t, a, b, c, second)

			// Carol comes back with another key, by a GroupInfo of a device that joined externally.
			staged, err := b.StageUpdate()
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range []Group{a, b, c, second} {
				if _, err := g.Process(staged.Commit); err != nil {
					t.Fatal(err)
				}
			}
			prior = ownLeaf(t, staged.GroupInfo, devices[2])
			c = enter(t, mustReborn(t, devices[2], false), staged.GroupInfo, prior, a, b, second)
			sameEpoch(t, a, b, c, second)
			tell(t, c, "I lost my phone", a, b, second)
			want := []string{"did:plc:alice", "did:plc:bob", "did:plc:bob", "did:plc:carol"}
			got := slices.Sorted(slices.Values(a.Members()))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("members (-want +got):\n%s", diff)
			}
		})
	}
}

// A discarded external commit leaves nothing, and the device's old state stays.
func TestDiscardJoin(t *testing.T) {
	t.Parallel()
	devices, groups := three(t, SuiteX25519)
	info := mustInfo(t, groups[0])
	if _, err := devices[1].JoinExternal(info, int(groups[1].Own())); err != nil {
		t.Fatal(err)
	}
	devices[1].DiscardJoin(groups[1].ID())
	if _, err := devices[1].ConfirmJoin(groups[1].ID()); err == nil {
		t.Error("a discarded external commit was confirmed")
	}
	tell(t, mustGroup(t, devices[1], groups[1].ID()), "as if nothing had been", groups[0], groups[2])
}

// One device of an account is removed, and the other stays. One commit can remove and add.
func TestStageOneLeaf(t *testing.T) {
	t.Parallel()
	_, groups := three(t, SuiteP256)
	a, b, c := groups[0], groups[1], groups[2]
	second := enter(t, mustDevice(t, "did:plc:bob", SuiteP256), mustInfo(t, a), NoLeaf, a, b, c)
	third := mustDevice(t, "did:plc:bob", SuiteP256)
	staged, err := second.Stage(Change{Add: [][]byte{mustPackage(t, third).Message}, Remove: []uint32{b.Own()}})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []Group{a, c, second} {
		if _, err := g.Process(staged.Commit); err != nil {
			t.Fatal(err)
		}
	}
	g, err := third.Join(staged.Welcome)
	if err != nil {
		t.Fatal(err)
	}
	sameEpoch(t, a, c, second, g)
	if n := len(a.Leaves()); n != 4 {
		t.Errorf("%d leaves, want 4", n)
	}
	if leaf, err := PackageLeaf(mustPackage(t, third).Message); err != nil ||
		!bytes.Equal(leaf.SignatureKey, third.SignatureKey()) {
		t.Errorf("a package's leaf: %+v, %v", leaf, err)
	}
}

// A last-resort KeyPackage is marked as such, and opens several Welcomes.
func TestLastResort(t *testing.T) {
	t.Parallel()
	for _, suite := range suites() {
		bob := mustDevice(t, "did:plc:bob", suite)
		kp, err := bob.LastResort()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(kp.Message, []byte{3, 0, 0x0A, 0}) {
			t.Error("no last_resort extension in it")
		}
		for i := range 3 {
			bob = restart(t, bob)
			a, err := mustDevice(t, "did:plc:alice", suite).Create([]byte(fmt.Sprint("group ", i)))
			if err != nil {
				t.Fatal(err)
			}
			b := add(t, a, [][]byte{kp.Message}, bob)[1]
			tell(t, b, "once more", a)
		}
	}
}
