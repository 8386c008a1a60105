package mlsclient

import (
	"bytes"
	"testing"

	"mlsd/mls"
)

// The parts of a fake object that the server can read are correct.
func TestFakeObjects(t *testing.T) {
	t.Parallel()
	group := RandomBytes(16)
	for _, content := range []byte{contentApplication, contentCommit} {
		for _, size := range []int{0, 63, 64, 1 << 14} {
			h, err := mls.ParseHeader(fakePrivateMessage(content, group, 7, size))
			if err != nil || h.Epoch != 7 || !bytes.Equal(h.GroupID, group) || byte(h.ContentType) != content {
				t.Errorf("content %d of %d bytes: %+v, %v", content, size, h, err)
			}
		}
	}
	refs := [][]byte{RandomBytes(32), RandomBytes(32), RandomBytes(32)}
	w, err := mls.ParseWelcome(FakeWelcome(SuiteX25519, refs...))
	if err != nil || len(w.Refs) != 3 || !bytes.Equal(w.Refs[1], refs[1]) {
		t.Errorf("a Welcome: %+v, %v", w, err)
	}
}
