package clientsim

import (
	"fmt"
	"slices"
	"testing"
)

// The seed says which phones commit in PrivateMessages: some do and some do
// not, the same ones each time, and a restarted app goes on as before.
func TestSeedChoosesCommitFrames(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) []bool {
		w := newWorld(target{dir: testDirectory(t)}, Options{Seed: seed}, 0, func(string) {})
		var hidden []bool
		for i := range 12 {
			p, err := w.Phone(fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}
			p.Kill()
			if err := p.Launch(); err != nil {
				t.Fatal(err)
			}
			hidden = append(hidden, p.device.(*goDevice).hidden)
		}
		return hidden
	}
	first := draw(1)
	if !slices.Contains(first, true) || !slices.Contains(first, false) {
		t.Errorf("twelve phones commit all alike: %v", first)
	}
	if again := draw(1); !slices.Equal(first, again) {
		t.Errorf("the same seed draws %v and %v", first, again)
	}
}
