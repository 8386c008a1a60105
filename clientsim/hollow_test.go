package clientsim

import (
	"bytes"
	"testing"
	"time"

	"mlsd/mls"
)

// What the server can read of a hollow object is sound.
func TestHollowObjects(t *testing.T) {
	t.Parallel()
	group := noise(16)
	for _, content := range []byte{hollowMessage, hollowCommit} {
		for _, size := range []int{0, 63, 64, 1 << 14} {
			h, err := mls.ParseHeader(hollowPrivate(content, group, 7, size))
			if err != nil || h.Epoch != 7 || !bytes.Equal(h.GroupID, group) || byte(h.ContentType) != content {
				t.Errorf("content %d of %d bytes: %+v, %v", content, size, h, err)
			}
		}
	}
	refs := [][]byte{noise(32), noise(32), noise(32)}
	w, err := mls.ParseWelcome(hollowWelcome(SuiteX25519, refs...))
	if err != nil || len(w.Refs) != 3 || !bytes.Equal(w.Refs[1], refs[1]) {
		t.Errorf("a Welcome: %+v, %v", w, err)
	}
}

func TestLag(t *testing.T) {
	t.Parallel()
	var l lag
	for i := range 100 {
		l.add(time.Duration(i) * time.Millisecond)
	}
	l.add(-1)
	if l.at(.5) != time.Duration(49)*time.Millisecond || l.at(1) != time.Duration(100)*time.Millisecond || l.total() != 101 || l.most.Load() != int64(time.Duration(99)*time.Millisecond) {
		t.Errorf("p50 %s, p100 %s, max %d of %d", l.at(.5), l.at(1), l.most.Load(), l.total())
	}
}
