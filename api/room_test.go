package api_test

import "testing"

// TestPagesLeaveRoom: while as many pages are being read as there is memory for, messages are sent.
func TestPagesLeaveRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	w.server.FillLargeAnswers(t)
	alice.send(c, "hello")
}
