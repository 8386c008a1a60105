// Package testbedtest has helpers for tests that need a PLC directory or a server.
package testbedtest

import (
	"testing"

	"mlsd/clientsim/testbed"
)

// Directory serves a PLC directory until the test ends.
func Directory(t *testing.T) *testbed.Directory {
	t.Helper()
	d, err := testbed.NewDirectory("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}
