package api_test

import "testing"

// Messages can be sent while other requests use all the memory of large answers and of larger bodies.
func TestLargeRequestsLeaveMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	w.server.FillMemory(t)
	alice.send(c, "hello")
}
