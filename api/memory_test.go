package api_test

import "testing"

// TestPagesLeaveMemory: messages can be sent while pages use all the memory of large answers.
func TestPagesLeaveMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	w.server.FillLargeAnswers(t)
	alice.send(c, "hello")
}
