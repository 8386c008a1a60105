package api

import (
	"bytes"
	"testing"
)

// The header of a frame has the shortest form for its length (RFC 6455, section 5.2).
func TestFramed(t *testing.T) {
	t.Parallel()
	for n, header := range map[int][]byte{
		0:         {0x82, 0},
		125:       {0x82, 125},
		126:       {0x82, 126, 0, 126},
		1<<16 - 1: {0x82, 126, 0xff, 0xff},
		1 << 16:   {0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0},
		1 << 24:   {0x82, 127, 0, 0, 0, 0, 1, 0, 0, 0},
	} {
		payload := bytes.Repeat([]byte{7}, n)
		if got := framed(append(make([]byte, frameHeader), payload...)); !bytes.Equal(got, append(header, payload...)) {
			t.Errorf("%d bytes: the frame begins with %x and has %d bytes", n, got[:min(len(got), frameHeader)], len(got))
		}
	}
}
