package api

import "testing"

// Whatever range a client asks for, it begins within the attachment and has a byte, or begins behind
// the end, which is refused.
func FuzzByteRange(f *testing.F) {
	for _, header := range []string{"bytes=0-1", "bytes=5-", "bytes=-5", "bytes=-0", "bytes=9-3", "bytes=0-1,3-4",
		"bytes=a-b",
		"bytes=9223372036854775807-9223372036854775807", "bytes=-9223372036854775808", "items=0-1", ""} {
		f.Add(header, int64(100))
		f.Add(header, int64(0))
	}
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 0 {
			return
		}
		offset, length, ok := byteRange(header, size)
		switch {
		case !ok && (offset != 0 || length != 0):
			t.Errorf("%q is no range, from %d", header, offset)
		case ok && (offset < 0 || offset < size && length <= 0):
			t.Errorf("%q of %d is %d bytes from %d", header, size, length, offset)
		}
	})
}
