package api

import (
	"bytes"
	"io"
	"net/http/httputil"
	"testing"
)

// Chunks are as net/http reads them, and their content is what was put in.
func TestChunk(t *testing.T) {
	t.Parallel()
	var body, want []byte
	for _, n := range []int{1, 9, 10, 15, 16, 255, 256, 1 << 16, 1<<20 - 1, 16 << 20} {
		content := bytes.Repeat([]byte{'\n'}, n)
		b := chunk(append(make([]byte, chunkHeader), content...))
		if got := contentOf(b); !bytes.Equal(got, content) {
			t.Errorf("%d bytes: the content has %d", n, len(got))
		}
		body, want = append(body, b...), append(want, content...)
	}
	body = append(body, lastChunk...)
	got, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(body)))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d of %d bytes: %v", len(got), len(want), err)
	}
	if got := contentOf(nil); len(got) != 0 {
		t.Errorf("no chunk has the content %q", got)
	}
}
