package scenario

import (
	"strings"
	"testing"

	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
)

// The judge of the contest reports a member that starves, and an epoch with two commits.
func TestContestIsJudged(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		scores []score
		want   string
	}{
		"fair":        {[]score{{wins: 3, losses: maxLosses}, {wins: 2, epochs: maxEpochs}}, ""},
		"starved":     {[]score{{wins: 5}, {losses: maxLosses + 1}}, "b lost 14 races in a row"},
		"waited":      {[]score{{wins: 5}, {epochs: maxEpochs + 1}}, "b waited 92 epochs"},
		"two in one":  {[]score{{wins: 3}, {wins: 3}}, "6 commits were accepted in 5 epochs"},
		"one missing": {[]score{{wins: 3}, {wins: 1}}, "4 commits were accepted in 5 epochs"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testbed.NewWorld(testbed.Target{}, testbed.Options{}, 0, func(string) {})
			(&contest{w: w}).judge([]*client.Phone{{Name: "a"}, {Name: "b"}}, tt.scores, 5, 0)
			found := w.Found()
			if tt.want == "" && len(found) > 0 || tt.want != "" &&
				(len(found) != 1 || !strings.Contains(found[0].What, tt.want)) {
				t.Errorf("found %v, want %q", found, tt.want)
			}
			if notes := w.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "the longest wait") {
				t.Errorf("notes %q", notes)
			}
		})
	}
}
