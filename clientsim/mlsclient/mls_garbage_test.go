package mlsclient

import (
	"bytes"
	"fmt"
	"testing"
)

// A commit with spoiled path secrets is garbage to some members. All others are in one epoch after it.
func TestStageGarbage(t *testing.T) {
	for _, suite := range []Suite{SuiteX25519, SuiteP256, SuiteChaCha20} {
		for _, spoiled := range []int{0, 2, 4} {
			groups := groupOf(t, suite, 6)
			count := 0
			staged, err := StageGarbage(groups[1], Garbage{Spoil: func(n int) []int {
				all := make([]int, min(spoiled, n))
				for i := range all {
					all[i] = n - 1 - i
				}
				return all
			}})
			if err != nil {
				t.Fatal(err)
			}
			if err := groups[1].Confirm(); err != nil {
				t.Fatal(err)
			}
			for i, g := range groups {
				if i == 1 {
					continue
				}
				if _, err := g.Process(staged.Commit); err != nil {
					count++
					continue
				}
				if !bytes.Equal(g.Authenticator(), groups[1].Authenticator()) {
					t.Errorf("%s, %d spoiled: member %d is in another epoch", suite.Name(), spoiled, i)
				}
			}
			if spoiled == 0 && count != 0 || spoiled > 0 && (count == 0 || count == len(groups)-1) {
				t.Errorf("%s, %d spoiled: %d members cannot process it", suite.Name(), spoiled, count)
			}
		}
	}
}

// groupOf makes a group of n members.
func groupOf(t *testing.T, suite Suite, n int) []Group {
	t.Helper()
	var devices []Device
	for i := range n {
		devices = append(devices, mustDevice(t, fmt.Sprintf("did:plc:member%d", i), suite))
	}
	return found(t, "garbage", devices[0], devices[1:]...)
}
