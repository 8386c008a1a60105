package testbed_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/testbed/testbedtest"
)

// The seed decides which phones commit in PrivateMessages. Some phones do and some do not. They are
// the same phones each time, also after a restart of the app.
func TestSeedChoosesCommitFrames(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) []bool {
		w := testbed.NewWorld(testbed.Target{Dir: testbedtest.Directory(t)}, testbed.Options{Seed: seed}, 0, func(string) {})
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
			data, err := p.Device.Export()
			if err != nil {
				t.Fatal(err)
			}
			var exported struct{ Hidden bool }
			if err := json.Unmarshal(data, &exported); err != nil {
				t.Fatal(err)
			}
			hidden = append(hidden, exported.Hidden)
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
