package mlsclient

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func suites() []Suite { return []Suite{SuiteX25519, SuiteP256, SuiteChaCha20} }

func mustDevice(t *testing.T, id string, suite Suite) Device {
	t.Helper()
	d, err := NewDevice(id, suite)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mustPackage(t *testing.T, d Device) KeyPackage {
	t.Helper()
	kp, err := d.KeyPackage()
	if err != nil {
		t.Fatal(err)
	}
	return kp
}

// restart exports a device and imports it again.
func restart(t *testing.T, d Device) Device {
	t.Helper()
	data, err := d.Export()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ImportDevice(data)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

func mustGroup(t *testing.T, d Device, id []byte) Group {
	t.Helper()
	g, ok := d.Group(id)
	if !ok {
		t.Fatalf("%s has no group %x", d.Identity(), id)
	}
	return g
}

// add lets a group add others by their KeyPackages, and returns it and the groups of the others.
func add(t *testing.T, to Group, packages [][]byte, others ...Device) []Group {
	t.Helper()
	staged, err := to.StageAdd(packages...)
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Confirm(); err != nil {
		t.Fatal(err)
	}
	groups := []Group{to}
	for _, d := range others {
		g, err := d.Join(staged.Welcome)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	return groups
}

// found makes a group of the devices, and returns it as each of them has it.
func found(t *testing.T, gid string, first Device, others ...Device) []Group {
	t.Helper()
	g, err := first.Create([]byte(gid))
	if err != nil {
		t.Fatal(err)
	}
	var packages [][]byte
	for _, d := range others {
		packages = append(packages, mustPackage(t, d).Message)
	}
	return add(t, g, packages, others...)
}

// tell sends one message from one group to the others and checks the answer.
func tell(t *testing.T, from Group, text string, to ...Group) {
	t.Helper()
	ciphertext, err := from.Encrypt([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if want := []byte{0, 1, 0, 2}; !bytes.HasPrefix(ciphertext, want) {
		t.Errorf("ciphertext starts with %x, want %x", ciphertext[:4], want)
	}
	for _, g := range to {
		got, err := g.Process(ciphertext)
		if err != nil {
			t.Fatal(err)
		}
		if string(got.Plaintext) != text || got.Epoch != from.Epoch() {
			t.Errorf("got %q of epoch %d, want %q of %d", got.Plaintext, got.Epoch, text, from.Epoch())
		}
		if _, err := g.Process(ciphertext); err == nil {
			t.Error("the same ciphertext was decrypted twice")
		}
	}
}

func sameEpoch(t *testing.T, groups ...Group) {
	t.Helper()
	for _, g := range groups[1:] {
		if !bytes.Equal(g.Authenticator(), groups[0].Authenticator()) || g.Epoch() != groups[0].Epoch() {
			t.Errorf("members disagree: epochs %d and %d", groups[0].Epoch(), g.Epoch())
		}
		if diff := cmp.Diff(groups[0].Members(), g.Members()); diff != "" {
			t.Errorf("members differ (-first +other):\n%s", diff)
		}
	}
}

func TestDeviceRoundTrip(t *testing.T) {
	t.Parallel()
	for _, suite := range suites() {
		t.Run(suite.Name(), func(t *testing.T) {
			t.Parallel()
			gid := []byte("the group id")
			alice := mustDevice(t, "did:plc:alice", suite)
			if _, err := alice.Create(gid); err != nil {
				t.Fatal(err)
			}
			var others []Device
			var packages [][]byte
			for i := range 3 {
				d := mustDevice(t, fmt.Sprintf("did:plc:other%d", i), suite)
				packages = append(packages, mustPackage(t, d).Message)
				others = append(others, restart(t, d)) // the private half survives
			}
			a := mustGroup(t, alice, gid)
			staged, err := a.StageAdd(packages...)
			if err != nil {
				t.Fatal(err)
			}
			if a.Epoch() != 0 || staged.Epoch != 1 {
				t.Errorf("staging moved the group: epoch %d, staged %d", a.Epoch(), staged.Epoch)
			}
			if got, err := HeaderEpoch(staged.Commit); err != nil || got != 0 {
				t.Errorf("commit's header epoch = %d, %v", got, err)
			}
			alice = restart(t, alice) // the staged commit survives
			a = mustGroup(t, alice, gid)
			if diff := cmp.Diff(staged, a.Pending()); diff != "" {
				t.Errorf("staged commit changed over a restart:\n%s", diff)
			}
			if _, err := a.Process(staged.Commit); err != nil {
				t.Fatal(err)
			}
			groups := []Group{a}
			for _, d := range others {
				g, err := d.Join(staged.Welcome)
				if err != nil {
					t.Fatal(err)
				}
				if refs := d.Refs(); len(refs) != 0 {
					t.Errorf("package %v still waits after the join", refs)
				}
				groups = append(groups, g)
			}
			sameEpoch(t, groups...)
			tell(t, groups[0], "hello", groups[1:]...)
			tell(t, groups[2], "hello yourself", groups[0], groups[1], groups[3])

			// A member that has just restarted removes another.
			remover := mustGroup(t, restart(t, others[0]), gid)
			gone, err := remover.StageRemove("did:plc:other2")
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range []Group{remover, groups[0], groups[2]} {
				if _, err := g.Process(gone.Commit); err != nil {
					t.Fatal(err)
				}
			}
			sameEpoch(t, remover, groups[0], groups[2])
			if members := remover.Members(); len(members) != 3 {
				t.Errorf("members after the removal: %v", members)
			}
			tell(t, remover, "just us", groups[0], groups[2])
			if _, err := groups[3].Encrypt([]byte("x")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestLostRace(t *testing.T) {
	t.Parallel()
	alice, bob := mustDevice(t, "did:plc:a", SuiteX25519), mustDevice(t, "did:plc:b", SuiteX25519)
	groups := found(t, "race", alice, bob)
	a, b := groups[0], groups[1]
	carol := mustDevice(t, "did:plc:c", SuiteX25519)
	if _, err := b.StageUpdate(); err != nil {
		t.Fatal(err)
	}
	winner, err := a.StageAdd(mustPackage(t, carol).Message)
	if err != nil {
		t.Fatal(err)
	}
	tell(t, b, "still in the old epoch", a) // a staged commit does not stop messages
	for _, g := range []Group{a, b} {
		if _, err := g.Process(winner.Commit); err != nil {
			t.Fatal(err)
		}
	}
	if b.Pending() != nil {
		t.Error("the losing commit is still staged")
	}
	again, err := b.StageUpdate()
	if err != nil {
		t.Fatal(err)
	}
	c, err := carol.Join(winner.Welcome)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []Group{a, b, c} {
		if _, err := g.Process(again.Commit); err != nil {
			t.Fatal(err)
		}
	}
	sameEpoch(t, a, b, c)
	if _, err := a.Process(again.Commit); err == nil || !strings.Contains(err.Error(), "commit of epoch 2 in epoch 3") {
		t.Errorf("a commit processed twice: %v", err)
	}
}

func TestTwoDevicesOfOneDID(t *testing.T) {
	t.Parallel()
	alice := mustDevice(t, "did:plc:a", SuiteP256)
	phone, tablet := mustDevice(t, "did:plc:b", SuiteP256), mustDevice(t, "did:plc:b", SuiteP256)
	groups := found(t, "pair", alice, phone, tablet)
	a, p, b := groups[0], groups[1], groups[2]
	tell(t, p, "from my other device", a, b)
	gone, err := a.StageRemove("did:plc:b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Process(gone.Commit); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"did:plc:a"}, a.Members()); diff != "" {
		t.Error(diff)
	}
}

func BenchmarkStageAdd100(b *testing.B) {
	alice, err := NewDevice("did:plc:a", SuiteX25519)
	if err != nil {
		b.Fatal(err)
	}
	g, err := alice.Create([]byte("big"))
	if err != nil {
		b.Fatal(err)
	}
	var packages [][]byte
	for i := range 99 {
		d, err := NewDevice(fmt.Sprintf("did:plc:%d", i), SuiteX25519)
		if err != nil {
			b.Fatal(err)
		}
		kp, err := d.KeyPackage()
		if err != nil {
			b.Fatal(err)
		}
		packages = append(packages, kp.Message)
	}
	for b.Loop() {
		if _, err := g.StageAdd(packages...); err != nil {
			b.Fatal(err)
		}
		if _, err := alice.Export(); err != nil {
			b.Fatal(err)
		}
	}
}

// The kind of frame survives a restart. A commit shows its epoch and kind in both frames.
func TestCommitFrames(t *testing.T) {
	t.Parallel()
	for _, suite := range suites() {
		for _, hidden := range []bool{false, true} {
			t.Run(fmt.Sprint(suite.Name(), hidden), func(t *testing.T) {
				t.Parallel()
				gid := []byte("framed")
				alice, bob := mustDevice(t, "did:plc:alice", suite), mustDevice(t, "did:plc:bob", suite)
				if _, err := alice.Create(gid); err != nil {
					t.Fatal(err)
				}
				alice.HideHandshakes(hidden)
				alice = restart(t, alice)
				a := mustGroup(t, alice, gid)
				b := add(t, a, [][]byte{mustPackage(t, bob).Message}, bob)[1]
				// Two commits lose and are dropped, between messages.
				for _, text := range []string{"one", "two"} {
					if _, err := a.StageUpdate(); err != nil {
						t.Fatal(err)
					}
					tell(t, a, text, b)
					a.Discard()
				}
				staged, err := a.StageUpdate()
				if err != nil {
					t.Fatal(err)
				}
				want := []byte{0, 1, 0, 1}
				if hidden {
					want[3] = 2
				}
				if got := staged.Commit[:4]; !bytes.Equal(got, want) {
					t.Errorf("the commit starts with %x, want %x", got, want)
				}
				if epoch, err := HeaderEpoch(staged.Commit); err != nil || epoch != 1 {
					t.Errorf("its header says epoch %d, %v", epoch, err)
				}
				tell(t, a, "three", b)
				for _, g := range []Group{a, b} {
					if got, err := g.Process(staged.Commit); err != nil || !got.Commit || got.Epoch != 1 {
						t.Fatalf("process: %+v, %v", got, err)
					}
				}
				sameEpoch(t, a, b)
				tell(t, b, "four", a)
			})
		}
	}
}
