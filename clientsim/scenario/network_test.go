package scenario

import (
	"testing"

	"mlsd/clientsim/history"
	"mlsd/clientsim/testbed"
)

// A missing invitation is lost, an invitation that is there twice is doubled, and any other
// difference breaks a promise. A compared row is taken out.
func TestNetworkComparesRows(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		got, want []string
		kind      history.ViolationKind // "" means none
	}{
		"as it has to be":      {[]string{"a"}, []string{"a"}, ""},
		"nowhere, as it has":   {nil, nil, ""},
		"lost":                 {nil, []string{"a"}, history.Lost},
		"twice":                {[]string{"a", "a"}, []string{"a"}, history.Duplicated},
		"shown and not hidden": {[]string{"a"}, nil, history.Duplicated},
		"another convo":        {[]string{"b"}, []string{"a"}, history.Broken},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &network{w: testbed.NewWorld(testbed.Target{}, testbed.Options{}, 1, func(string) {})}
			rows := invitationRows{"key": tt.got}
			n.same("somewhere", "key", rows, tt.want...)
			var kind history.ViolationKind
			for _, v := range n.w.Found() {
				kind = v.Kind
			}
			if kind != tt.kind || len(rows) != 0 {
				t.Errorf("found %q, want %q; left %v", kind, tt.kind, rows)
			}
		})
	}
}
