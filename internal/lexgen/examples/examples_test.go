package examples

import "testing"

// Names are unique, so that they can name subtests, and every method has cases.
func TestCases(t *testing.T) {
	t.Parallel()
	total := 0
	for _, nsid := range NSIDs() {
		seen := map[string]bool{}
		valid, invalid := Valid(nsid), Invalid(nsid)
		for _, c := range append(valid, invalid...) {
			if seen[c.Name] {
				t.Errorf("%s: two cases named %q", nsid, c.Name)
			}
			seen[c.Name] = true
		}
		if len(valid) == 0 || len(invalid) == 0 && len(find(nsid).props) > 0 {
			t.Errorf("%s: %d valid and %d invalid cases", nsid, len(valid), len(invalid))
		}
		total += len(invalid)
	}
	t.Logf("%d invalid requests", total)
}
