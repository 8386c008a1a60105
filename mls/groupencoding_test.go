package mls

import (
	"bytes"
	"errors"
	"testing"
)

// TestGroupEncoding checks that a group which was encoded and parsed again applies commits as the
// original does.
func TestGroupEncoding(t *testing.T) {
	t.Parallel()
	for _, suite := range []CipherSuite{SuiteX25519AES128, SuiteP256AES128, SuiteX25519ChaCha20} {
		g := newGroupSpec(t, suite, 5, ext(ExtensionRequiredCapabilities, 0, 0, 0))
		for _, c := range []*commitSpec{{}, {sender: 3, proposals: [][]byte{removeOf(4)}},
			{proposals: [][]byte{addOf(t, newSpec(t, suite))}}} {
			parsed := must(ParseGroup(g.group.Encode()))(t)
			if !bytes.Equal(parsed.Encode(), g.group.Encode()) || !bytes.Equal(parsed.Context(), g.group.Context()) {
				t.Fatalf("%s: the parsed group differs", suite)
			}
			commit := must(ParseCommit(c.build(t, g)))(t)
			want := must(g.group.Apply(commit))(t)
			got := must(parsed.Apply(commit))(t)
			if !bytes.Equal(got.Next.Encode(), want.Next.Encode()) {
				t.Fatalf("%s: the commit gives the parsed group another next epoch", suite)
			}
			g.group = want.Next
		}
		encoded := g.group.Encode()
		for n := range encoded {
			if _, err := ParseGroup(encoded[:n]); err == nil {
				t.Fatalf("%s: the first %d of %d bytes are a group", suite, n, len(encoded))
			}
		}
		if _, err := ParseGroup(append(encoded, 0)); !errors.Is(err, ErrMalformed) {
			t.Fatalf("%s: a trailing byte: %v", suite, err)
		}
	}
}
