package limit_test

import (
	"testing"

	"mlsd/internal/limit"
)

func TestNetwork(t *testing.T) {
	t.Parallel()
	for caller, want := range map[string]string{
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "::ffff:192.0.2.7",
		"did:plc:alice": "did:plc:alice", "fe80::1%eth0": "fe80::/64",
	} {
		if got := limit.Network(caller); got != want {
			t.Errorf("%s: %s, want %s", caller, got, want)
		}
	}
}
